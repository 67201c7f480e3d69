//! How a verb says that it failed: a sentence for the person and an exit code for the script.

use std::fmt;
use std::process::ExitCode;

/// Exit code when the work was understood and failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit code when the input was wrong: nothing was started.
pub const EXIT_USAGE: u8 = 2;

/// Why a verb ended without having done its work.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// Bad input: says what, where, and what would be valid. Exit code 2.
    pub fn usage(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_USAGE,
            text: text.into(),
        }
    }

    /// The work failed. Exit code 1.
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_FAILED,
            text: text.into(),
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<kuroshio_service::ServiceError> for Failure {
    fn from(e: kuroshio_service::ServiceError) -> Self {
        if e.is_bad_input() {
            Self::usage(e.to_string())
        } else {
            Self::failed(e.to_string())
        }
    }
}
