//! The binary encoding under commands, outbox messages and images: how a value becomes bytes.
//!
//! Integers are LEB128 varints, ids and hashes are fixed, texts and lists carry their length. Reading
//! borrows from the input. Any input gives a value or a `DecodeError`: lengths are checked against
//! what is left before anything is allocated, and nothing panics.

use crate::{ClaimToken, DecodeError, SessionId, ShardId, TaskId, TaskStateName, Timestamp};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Room made for a list before its elements are read: a false count must not allocate.
pub(crate) const LIST_CAPACITY_MAX: usize = 256;

/// Where reading has come to.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// An error that names the place.
    pub(crate) fn error(&self, what: impl std::fmt::Display) -> DecodeError {
        DecodeError { what: format!("{what} at byte {} of {}", self.at, self.bytes.len()) }
    }

    pub(crate) fn read<T: Wire<'a>>(&mut self) -> Result<T, DecodeError> {
        T::read(self)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let left = &self.bytes[self.at..];
        let Some(taken) = left.get(..count) else {
            return Err(self.error(format_args!("{count} bytes wanted, {} left", left.len())));
        };
        self.at += count;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.error("number over 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error("number over 64 bits"))
    }

    /// The count of a list. Every element takes at least one byte, so a larger count is a lie.
    fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left => Ok(count),
            _ => Err(self.error(format_args!("{count} elements announced, {left} bytes left"))),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Ends reading; what is left over means that the bytes are something else.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(self.error(format_args!("{} bytes left over", self.bytes.len() - self.at)))
    }
}

/// Reads one value that is all of `bytes`.
pub(crate) fn decode<'a, T: Wire<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = reader.read()?;
    reader.finish()?;
    Ok(value)
}

/// The bytes of one value.
pub(crate) fn encode<'a>(value: &impl Wire<'a>) -> Box<[u8]> {
    let mut out = Vec::new();
    value.write(&mut out);
    out.into_boxed_slice()
}

/// A value with an encoding.
pub(crate) trait Wire<'a>: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    fn write_list(items: &[Self], out: &mut Vec<u8>) {
        for item in items {
            item.write(out);
        }
    }

    fn read_list(reader: &mut Reader<'a>, count: usize) -> Result<Vec<Self>, DecodeError> {
        let mut items = Vec::with_capacity(count.min(LIST_CAPACITY_MAX));
        for _ in 0..count {
            items.push(Self::read(reader)?);
        }
        Ok(items)
    }
}

pub(crate) fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

impl<'a> Wire<'a> for u8 {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn read(reader: &mut Reader<'a>) -> Result<u8, DecodeError> {
        reader.byte()
    }

    fn write_list(items: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(items);
    }

    fn read_list(reader: &mut Reader<'a>, count: usize) -> Result<Vec<u8>, DecodeError> {
        Ok(reader.take(count)?.to_vec())
    }
}

macro_rules! wire_varint {
    ($($type:ty),+) => {$(
        impl<'a> Wire<'a> for $type {
            fn write(&self, out: &mut Vec<u8>) {
                write_varint(u64::from(*self), out);
            }

            fn read(reader: &mut Reader<'a>) -> Result<$type, DecodeError> {
                let value = reader.varint()?;
                <$type>::try_from(value)
                    .map_err(|_| reader.error(format_args!("{value} is too large")))
            }
        }
    )+};
}

wire_varint!(u16, u32, u64);

impl<'a> Wire<'a> for u128 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn read(reader: &mut Reader<'a>) -> Result<u128, DecodeError> {
        let bytes = reader.take(16)?;
        Ok(u128::from_be_bytes(bytes.try_into().expect("16 bytes were taken")))
    }
}

impl<'a> Wire<'a> for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(reader: &mut Reader<'a>) -> Result<bool, DecodeError> {
        match reader.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(reader.error(format_args!("{other} is neither true nor false"))),
        }
    }
}

impl<'a> Wire<'a> for &'a [u8] {
    fn write(&self, out: &mut Vec<u8>) {
        write_varint(self.len() as u64, out);
        out.extend_from_slice(self);
    }

    fn read(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
        let count = reader.count()?;
        reader.take(count)
    }
}

impl<'a> Wire<'a> for &'a str {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_bytes().write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
        let bytes: &[u8] = reader.read()?;
        std::str::from_utf8(bytes).map_err(|_| reader.error("text that is not UTF-8"))
    }
}

impl<'a> Wire<'a> for Box<str> {
    fn write(&self, out: &mut Vec<u8>) {
        (&**self).write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Box<str>, DecodeError> {
        Ok(<&str>::read(reader)?.into())
    }
}

impl<'a> Wire<'a> for Cow<'a, str> {
    fn write(&self, out: &mut Vec<u8>) {
        (&**self).write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Cow<'a, str>, DecodeError> {
        <&str>::read(reader).map(Cow::Borrowed)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Option<T>, DecodeError> {
        if bool::read(reader)? { T::read(reader).map(Some) } else { Ok(None) }
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        write_varint(self.len() as u64, out);
        T::write_list(self, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Vec<T>, DecodeError> {
        let count = reader.count()?;
        T::read_list(reader, count)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Box<[T]> {
    fn write(&self, out: &mut Vec<u8>) {
        write_varint(self.len() as u64, out);
        T::write_list(self, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Box<[T]>, DecodeError> {
        Vec::read(reader).map(Vec::into_boxed_slice)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Box<T> {
    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Box<T>, DecodeError> {
        T::read(reader).map(Box::new)
    }
}

impl<'a, K: Wire<'a> + Ord, V: Wire<'a>> Wire<'a> for BTreeMap<K, V> {
    fn write(&self, out: &mut Vec<u8>) {
        write_varint(self.len() as u64, out);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<BTreeMap<K, V>, DecodeError> {
        let pairs: Vec<(K, V)> = reader.read()?;
        if !pairs.is_sorted_by(|left, right| left.0 < right.0) {
            return Err(reader.error("a map out of order"));
        }
        Ok(pairs.into_iter().collect())
    }
}

impl<'a, A: Wire<'a>, B: Wire<'a>> Wire<'a> for (A, B) {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<(A, B), DecodeError> {
        Ok((A::read(reader)?, B::read(reader)?))
    }
}

macro_rules! wire_newtype {
    ($($type:ident),+) => {$(
        impl<'a> Wire<'a> for $type {
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }

            fn read(reader: &mut Reader<'a>) -> Result<$type, DecodeError> {
                Ok($type(reader.read()?))
            }
        }
    )+};
}

wire_newtype!(Timestamp, ShardId, ClaimToken, SessionId);

impl<'a> Wire<'a> for TaskId {
    fn write(&self, out: &mut Vec<u8>) {
        self.to_u128().write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<TaskId, DecodeError> {
        u128::read(reader).map(TaskId::from_u128)
    }
}

/// Encodes a struct as its fields, in this order. The order is the format: append, never reorder.
macro_rules! wire_struct {
    ($name:ident $(<$life:lifetime>)? { $($field:ident),+ $(,)? }) => {
        impl<'a> $crate::wire::Wire<'a> for $name $(<$life>)? {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)+
            }

            fn read(
                reader: &mut $crate::wire::Reader<'a>,
            ) -> Result<Self, $crate::DecodeError> {
                Ok($name { $($field: reader.read()?),+ })
            }
        }
    };
}

/// Encodes an enum without data as one byte. A number is never given to another variant.
macro_rules! wire_words {
    ($name:ident { $($number:literal => $variant:ident),+ $(,)? }) => {
        impl<'a> $crate::wire::Wire<'a> for $name {
            fn write(&self, out: &mut Vec<u8>) {
                out.push(match self { $($name::$variant => $number),+ });
            }

            fn read(
                reader: &mut $crate::wire::Reader<'a>,
            ) -> Result<Self, $crate::DecodeError> {
                match reader.byte()? {
                    $($number => Ok($name::$variant),)+
                    other => {
                        let what = format!("unknown {} {other}", stringify!($name));
                        Err(reader.error(what))
                    }
                }
            }
        }
    };
}

pub(crate) use {wire_struct, wire_words};

wire_words!(TaskStateName {
    1 => Blocked,
    2 => Scheduled,
    3 => Ready,
    4 => Claimed,
    5 => Succeeded,
    6 => Failed,
    7 => Dead,
    8 => Cancelled,
    9 => Expired,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_at_their_edges() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            assert_eq!(Reader::new(&bytes).read::<u64>(), Ok(value));
        }
        let overlong = [0xff; 10];
        assert!(Reader::new(&overlong).read::<u64>().is_err());
        assert!(Reader::new(&[0x80, 0x80, 0x04]).read::<u16>().is_err(), "65536 is no u16");
    }

    #[test]
    fn a_false_count_is_refused_before_anything_is_allocated() {
        let mut bytes = Vec::new();
        write_varint(u64::MAX, &mut bytes);
        assert!(Reader::new(&bytes).read::<Vec<u64>>().is_err());
        assert!(Reader::new(&bytes).read::<&[u8]>().is_err());
    }
}
