//! Task types: the types that a claim, a hint or a worker accepts. An empty list means any type.

use std::sync::Arc;
use taskyard_machine::{
    DecodeError,
    wire::{Reader, Wire},
};

/// Sorted and unique; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskTypes(Option<Arc<[String]>>);

impl TaskTypes {
    /// Every type.
    pub const ANY: TaskTypes = TaskTypes(None);

    /// These types, or any type if the list is empty.
    pub fn new(mut names: Vec<String>) -> TaskTypes {
        names.sort_unstable();
        names.dedup();
        TaskTypes((!names.is_empty()).then(|| names.into()))
    }

    /// The names; empty for any type.
    pub fn names(&self) -> &[String] {
        self.0.as_deref().unwrap_or_default()
    }

    pub(crate) fn borrowed(&self) -> Vec<&str> {
        self.names().iter().map(String::as_str).collect()
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn has(&self, task_type: &str) -> bool {
        let position = |names: &Arc<[String]>| {
            names.binary_search_by(|name| name.as_str().cmp(task_type)).is_ok()
        };
        self.0.as_ref().is_none_or(position)
    }

    /// Whether a task may fit both.
    pub(crate) fn overlaps(&self, other: &TaskTypes) -> bool {
        let (few, many) = match self.names().len() <= other.names().len() {
            true => (self, other),
            false => (other, self),
        };
        few.is_any() || few == many || few.names().iter().any(|name| many.has(name))
    }
}

impl<'a> Wire<'a> for TaskTypes {
    fn write(&self, out: &mut Vec<u8>) {
        self.borrowed().write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<TaskTypes, DecodeError> {
        reader.read().map(TaskTypes::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(names: &[&str]) -> TaskTypes {
        TaskTypes::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn types_are_a_set_and_none_is_any() {
        assert_eq!(types(&["b", "a", "b"]), types(&["a", "b"]));
        assert_eq!(types(&[]), TaskTypes::ANY);
        assert!(TaskTypes::ANY.has("x") && types(&["x", "y"]).has("y"));
        assert!(!types(&["x", "y"]).has("z"));
    }

    #[test]
    fn types_overlap_where_one_task_fits_both() {
        for (left, right, expected) in [
            (&[][..], &[][..], true),
            (&[], &["a"], true),
            (&["a"], &["a"], true),
            (&["a"], &["b"], false),
            (&["a", "c"], &["b", "c", "d"], true),
            (&["a", "e"], &["b", "c", "d"], false),
        ] {
            let (left, right) = (types(left), types(right));
            assert_eq!(left.overlaps(&right), expected, "{left:?} {right:?}");
            assert_eq!(right.overlaps(&left), expected, "{right:?} {left:?}");
        }
    }
}
