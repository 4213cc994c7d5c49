//! BATCH.

use super::{Shared, frame::Reply};
use crate::Error;

impl Shared {
    pub(super) async fn batch(&self, _rest: &str) -> Result<Reply, Error> {
        Ok(Reply::error("no such batch"))
    }
}
