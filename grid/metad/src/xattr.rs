//! Extended attributes: requests to the catalog and back.

use kuroshio_catalog as cat;
use kuroshio_catalog::{Place, SetXattrMode};
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_service::Operation;

use crate::door::Session;
use crate::server::Inner;

type Answered = Result<Answer, Failure>;

fn done(_: ()) -> Answer {
    Answer::Done(v1::Done {})
}

impl Inner {
    pub async fn get_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let op = cat::GetXattr {
            place: Place::path(&r.path),
            name: r.name,
        };
        let value = self.ask(&session.who.caller, op).await?;
        Ok(Answer::Xattr(v1::XattrReply {
            value,
            names: Vec::new(),
        }))
    }

    pub async fn list_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let place = Place::path(&r.path);
        let names = self.ask(&session.who.caller, cat::ListXattr { place }).await?;
        Ok(Answer::Xattr(v1::XattrReply {
            value: Vec::new(),
            names,
        }))
    }

    pub async fn set_xattr(&self, session: &Session, r: v1::SetXattrRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let mode = match (r.create, r.replace) {
            (false, false) => SetXattrMode::Any,
            (true, false) => SetXattrMode::Create,
            (false, true) => SetXattrMode::Replace,
            (true, true) => {
                let text = "an attribute that must and must not be there";
                return Err(Failure::new(Code::Invalid, text));
            }
        };
        let op = cat::SetXattr {
            place: Place::path(&r.path),
            name: r.name,
            value: r.value,
            mode,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    pub async fn remove_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let op = cat::RemoveXattr {
            place: Place::path(&r.path),
            name: r.name,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }
}
