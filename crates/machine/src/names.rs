//! Names: task types and worker names, one copy of each for all tasks.
//!
//! A name is removed when its last use is released, so that a stream of short-lived worker names
//! does not fill the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A name in the table. Replicas number names differently: nothing that replicas must agree on may
/// depend on the order of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameId(u32);

impl NameId {
    pub(crate) const FIRST: NameId = NameId(0);
}

#[derive(Debug)]
struct Name {
    text: Arc<str>,
    uses: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Vec<Option<Name>>,
    by_text: BTreeMap<Arc<str>, NameId>,
    free: Vec<NameId>,
    bytes: u64,
}

/// Bytes of one name beside its text: the table, the tree and the shared text's header.
const NAME_BYTES: u64 = 80;

impl Names {
    /// Adds one use of `text`.
    pub(crate) fn intern(&mut self, text: &str) -> NameId {
        if let Some(&id) = self.by_text.get(text) {
            self.entry(id).uses += 1;
            return id;
        }
        let shared: Arc<str> = text.into();
        let name = Name { text: Arc::clone(&shared), uses: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.table[id.0 as usize] = Some(name);
                id
            }
            None => {
                self.table.push(Some(name));
                NameId(self.table.len() as u32 - 1)
            }
        };
        self.bytes += NAME_BYTES + shared.len() as u64;
        self.by_text.insert(shared, id);
        id
    }

    /// Removes one use.
    pub(crate) fn release(&mut self, id: NameId) {
        let name = self.entry(id);
        name.uses -= 1;
        if name.uses == 0 {
            let name = self.table[id.0 as usize].take().expect("it was just read");
            self.bytes -= NAME_BYTES + name.text.len() as u64;
            self.by_text.remove(&name.text);
            self.free.push(id);
        }
    }

    /// The name of a text that somebody uses.
    pub(crate) fn find(&self, text: &str) -> Option<NameId> {
        self.by_text.get(text).copied()
    }

    pub(crate) fn get(&self, id: NameId) -> &Arc<str> {
        let name = self.table[id.0 as usize].as_ref();
        &name.unwrap_or_else(|| panic!("name {id:?} was released too early")).text
    }

    /// The number of uses of every name, for checks.
    pub(crate) fn uses(&self) -> BTreeMap<&str, u32> {
        self.table.iter().flatten().map(|name| (&*name.text, name.uses)).collect()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    fn entry(&mut self, id: NameId) -> &mut Name {
        let name = self.table[id.0 as usize].as_mut();
        name.unwrap_or_else(|| panic!("name {id:?} was released too early"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_goes_with_its_last_use() {
        let mut names = Names::default();
        let first = names.intern("send");
        let again = names.intern("send");
        assert_eq!(first, again);
        names.release(first);
        assert_eq!(&**names.get(again), "send");
        names.release(again);
        assert!(names.uses().is_empty());
        assert_eq!(names.memory_bytes(), 0);
        assert_eq!(names.intern("other"), first, "its place is used again");
    }
}
