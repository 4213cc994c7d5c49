//! Unique keys in `taskyard.v1`, in requests and in replies.

use crate::{Error, front::unique::UniqueDraft};
use taskyard_machine::{OnConflict, UniqueUntil, UniqueView};
use taskyard_proto::v1;

pub(super) fn draft(unique: &v1::Unique) -> Result<UniqueDraft<'_>, Error> {
    use v1::unique::{OnConflict as Conflict, Until};
    let until = Until::try_from(unique.until)
        .map_err(|_| Error::Invalid(format!("unique.until {} is not known", unique.until)))?;
    let conflict = Conflict::try_from(unique.on_conflict).map_err(|_| {
        Error::Invalid(format!("unique.on_conflict {} is not known", unique.on_conflict))
    })?;
    Ok(UniqueDraft {
        key: unique.key.as_deref(),
        fields: &unique.fields,
        until: match until {
            Until::Unspecified => None,
            Until::Start => Some(UniqueUntil::Start),
            Until::Done => Some(UniqueUntil::Done),
        },
        window_ms: unique.window_ms,
        on_conflict: match conflict {
            Conflict::Unspecified => None,
            Conflict::Existing => Some(OnConflict::Existing),
            Conflict::Replace => Some(OnConflict::Replace),
            Conflict::Reject => Some(OnConflict::Reject),
        },
        debounce_ms: unique.debounce_ms,
    })
}

pub(super) fn shown(unique: UniqueView) -> v1::TaskUnique {
    v1::TaskUnique {
        key: unique.key,
        until: unique.until.map_or("", |until| until.as_str()).to_owned(),
        expires_at: unique.expires_at.map(|at| at.0),
        debounce_ms: unique.debounce_ms,
        held: unique.held,
    }
}
