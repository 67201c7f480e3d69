//! Which grid a command speaks to, and the folders in which a grid's services live.
//!
//! `--grid` (or `KUROSHIO_GRID`) is the folder that `kuroshio up` or `kuroshio init` made, or a name that
//! `kuroshio fs grid add` keeps in `$XDG_CONFIG_HOME/kuroshio/grids.toml` (mode 0600). Without it the only
//! grid known is meant.

use std::path::{Path, PathBuf};

use kuroshio_client::{ClientError, Grid};
use kuroshio_metad::{Metad, MetadError};
use kuroshio_node::NodeError;
use kuroshio_service::{Ticket, TrustStore};

use crate::error::Failure;

/// Names the grid when `--grid` is not given.
const ENVIRONMENT: &str = "KUROSHIO_GRID";

/// Which grid.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// The grid: a folder made by `up` or `init`, or a kept name [default: $KUROSHIO_GRID, or the only one known]
    #[arg(long, value_name = "DIR|NAME", global = true)]
    pub grid: Option<String>,
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        if e.is_bad_input() {
            Self::usage(e.to_string())
        } else {
            Self::failed(e.to_string())
        }
    }
}

impl From<MetadError> for Failure {
    fn from(e: MetadError) -> Self {
        match e {
            MetadError::Service(e) => e.into(),
            MetadError::Invalid(text) => Self::usage(text),
            e => Self::failed(e.to_string()),
        }
    }
}

impl From<NodeError> for Failure {
    fn from(e: NodeError) -> Self {
        match e {
            NodeError::Service(e) => e.into(),
            NodeError::Client(e) => e.into(),
            e => Self::failed(e.to_string()),
        }
    }
}

/// Folder of the metadata service of a whole grid in one folder.
pub fn metad_dir(dir: &Path) -> PathBuf {
    dir.join("metad")
}

/// The names of grids that this user knows.
pub fn store() -> Result<TrustStore, Failure> {
    let path = TrustStore::default_path()?.with_file_name("grids.toml");
    Ok(TrustStore::open(&path)?)
}

impl Which {
    /// Connects to the grid.
    pub fn connect(&self) -> Result<Grid, Failure> {
        Ok(Grid::connect(&self.ticket()?)?)
    }

    /// The ticket to the grid.
    pub fn ticket(&self) -> Result<Ticket, Failure> {
        let wanted = match &self.grid {
            Some(grid) => Some(grid.clone()),
            None => std::env::var(ENVIRONMENT).ok().filter(|g| !g.is_empty()),
        };
        let Some(wanted) = wanted else {
            return only_known();
        };
        for dir in [metad_dir(Path::new(&wanted)), PathBuf::from(&wanted)] {
            if let Some(ticket) = Metad::kept_admin_ticket(&dir)? {
                return Ok(ticket);
            }
        }
        if wanted.contains('/') {
            return Err(Failure::usage(format!(
                "{wanted}: no grid was started in this folder; `kuroshio up --dir {wanted}` makes one"
            )));
        }
        let store = store()?;
        let known = names(&store);
        match store.get(&wanted) {
            Ok(ticket) => Ok(ticket.clone()),
            Err(_) => Err(Failure::usage(format!(
                "no grid is known as `{wanted}` (known: {known}); `kuroshio fs grid add {wanted}` reads its ticket from \
                 standard input; a folder is written ./{wanted}"
            ))),
        }
    }
}

fn names(store: &TrustStore) -> String {
    let names = store.iter().map(|(name, _)| name).collect::<Vec<_>>();
    if names.is_empty() {
        "none yet".to_owned()
    } else {
        names.join(", ")
    }
}

fn only_known() -> Result<Ticket, Failure> {
    let store = store()?;
    let mut all = store.iter();
    match (all.next(), all.next()) {
        (Some((_, ticket)), None) => Ok(ticket.clone()),
        (None, _) => Err(Failure::usage(
            "no grid is known: `kuroshio up --dir DIR` starts one on this machine, `kuroshio fs grid add NAME` keeps the \
             ticket of another one",
        )),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "several grids are known ({}): say which by --grid or {ENVIRONMENT}",
            names(&store)
        ))),
    }
}
