//! Errors over gRPC: the status of each, with its stable code in the metadata.

use crate::{Error, limits::BODY_BYTES_MAX};
use taskyard_proto::v1;
use tonic::{Code, Status, metadata::MetadataValue};

/// The metadata key of the stable code.
pub(in crate::front) const CODE_KEY: &str = "taskyard-code";
/// The metadata key of the task that holds a unique key.
const HOLDER_KEY: &str = "taskyard-holder";

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let code = error.code();
        let mut status = Status::new(grpc_code(code), error.to_string());
        status.metadata_mut().insert(CODE_KEY, MetadataValue::from_static(code));
        let holder = error.holder().and_then(|id| MetadataValue::try_from(id.to_string()).ok());
        if let Some(holder) = holder {
            status.metadata_mut().insert(HOLDER_KEY, holder);
        }
        status
    }
}

pub(in crate::front) fn grpc_code(code: &str) -> Code {
    match code {
        "invalid_argument" | "payload_too_large" => Code::InvalidArgument,
        "permission_denied" => Code::PermissionDenied,
        "not_found" => Code::NotFound,
        "claim_lost" | "already_finished" | "queue_not_empty" | "conflict" => {
            Code::FailedPrecondition
        }
        "not_unique" => Code::AlreadyExists,
        "queue_full" | "limit_exceeded" | "disk_full" => Code::ResourceExhausted,
        "no_quorum" | "unavailable" => Code::Unavailable,
        _ => Code::Unknown,
    }
}

impl From<&Error> for v1::Error {
    fn from(error: &Error) -> v1::Error {
        let holder = error.holder().map(|id| id.to_string()).unwrap_or_default();
        v1::Error { code: error.code().into(), message: error.to_string(), holder }
    }
}

/// The code of a message over the size limit.
pub(in crate::front) const TOO_LARGE: &str = "payload_too_large";

/// The advice for a message over the size limit, in ASCII because it also goes into a header.
pub(in crate::front) fn too_large() -> String {
    let bytes_max = BODY_BYTES_MAX;
    format!("the request has more than {bytes_max} bytes; send less in one request")
}

/// Whether a status says what is wrong with a message, and not how its connection ended.
pub(super) fn is_about_message(status: &Status) -> bool {
    status.code() == Code::Internal || status.metadata().contains_key(CODE_KEY)
}

/// Adds the code to a status that tonic made (for a message that can't be decoded).
pub(super) fn with_code(status: Status) -> Status {
    let error = match status.code() {
        _ if status.metadata().contains_key(CODE_KEY) => return status,
        Code::Internal => {
            Error::Invalid(format!("the message can't be read: {}", status.message()))
        }
        Code::OutOfRange => {
            let mut refused = Status::new(grpc_code(TOO_LARGE), too_large());
            refused.metadata_mut().insert(CODE_KEY, MetadataValue::from_static(TOO_LARGE));
            return refused;
        }
        _ => return status,
    };
    error.into()
}
