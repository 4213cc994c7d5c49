//! Wire: the binary encoding of commands, outbox messages, images and messages between nodes.
//!
//! Integers are LEB128 varints, ids and hashes have a fixed length, texts and lists begin with
//! their length. Reading borrows from the input. Invariant: any input gives a value or a
//! `DecodeError`, and no panic. A length is checked against the remaining bytes before memory is
//! allocated, and the depth of nested values is bounded.

use crate::digest::Digest;
use crate::{
    ClaimToken, DecodeError, QueueName, SessionId, ShardId, TaskId, TaskStateName, Timestamp,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The most elements for which a list allocates memory before it reads them, because the count may
/// be false.
pub(crate) const LIST_CAPACITY_MAX: usize = 256;

/// The greatest depth of nested boxed values, such as a rejection in a rejection. Real values have
/// a depth of two or three; a greater depth could overflow the stack.
const NESTED_MAX: u32 = 16;

/// The most memory for the lists of one value from another node, because an element of one byte on
/// the wire may take far more memory.
const FOREIGN_LISTS_BYTES_MAX: usize = 256 << 20;

/// A position in the bytes to read.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    nested: u32,
    /// The memory that lists may still take.
    lists_bytes_left: usize,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader at byte {} of {}", self.at, self.bytes.len())
    }
}

impl<'a> Reader<'a> {
    /// Reads bytes that this node has written.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, nested: 0, lists_bytes_left: usize::MAX }
    }

    /// Reads bytes from another node. The memory of lists is bounded too.
    pub fn foreign(bytes: &'a [u8]) -> Reader<'a> {
        Reader { lists_bytes_left: FOREIGN_LISTS_BYTES_MAX, ..Reader::new(bytes) }
    }

    /// An error that names the position.
    pub fn error(&self, what: impl std::fmt::Display) -> DecodeError {
        DecodeError { what: format!("{what} at byte {} of {}", self.at, self.bytes.len()) }
    }

    /// The next value.
    pub fn read<T: Wire<'a>>(&mut self) -> Result<T, DecodeError> {
        T::read(self)
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let left = &self.bytes[self.at..];
        let Some(taken) = left.get(..count) else {
            return Err(self.error(format_args!("{count} bytes wanted, {} left", left.len())));
        };
        self.at += count;
        Ok(taken)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    /// The next number.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
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

    /// The count of a list. Every element takes at least one byte, so a larger count is false.
    fn count<T>(&mut self) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        let left = self.bytes.len() - self.at;
        let count = match usize::try_from(count) {
            Ok(count) if count <= left => count,
            _ => {
                let what = format_args!("{count} elements announced, {left} bytes left");
                return Err(self.error(what));
            }
        };
        match self.lists_bytes_left.checked_sub(count.saturating_mul(size_of::<T>())) {
            Some(left) => self.lists_bytes_left = left,
            None => return Err(self.error(format_args!("{count} elements take too much memory"))),
        }
        Ok(count)
    }

    /// Reads a value inside another, which may have the same type.
    fn nested<T: Wire<'a>>(&mut self) -> Result<T, DecodeError> {
        if self.nested == NESTED_MAX {
            return Err(self.error(format_args!("values are nested more than {NESTED_MAX} deep")));
        }
        self.nested += 1;
        let value = self.read();
        self.nested -= 1;
        value
    }

    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Ends reading; remaining bytes are an error.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(self.error(format_args!("{} bytes left over", self.bytes.len() - self.at)))
    }
}

/// Reads one value that takes up all of `bytes`.
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

/// The bytes of one value for another node, after one byte for the version of their layout.
pub fn encode_for_node<'a>(version: u8, value: &impl Wire<'a>) -> Vec<u8> {
    let mut out = vec![version];
    value.write(&mut out);
    out
}

/// Decodes the bytes of [`encode_for_node`].
pub fn decode_from_node<'a, T: Wire<'a>>(version: u8, bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::foreign(bytes);
    match reader.byte()? {
        found if found == version => {}
        found => return Err(reader.error(format_args!("version {found} instead of {version}"))),
    }
    let value = reader.read()?;
    reader.finish()?;
    Ok(value)
}

/// A value with an encoding.
pub trait Wire<'a>: Sized {
    /// Appends the value.
    fn write(&self, out: &mut Vec<u8>);
    /// Reads the next value. Any bytes give a value or an error.
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Appends the elements of a list, without their count.
    fn write_list(items: &[Self], out: &mut Vec<u8>) {
        for item in items {
            item.write(out);
        }
    }

    /// Reads the elements of [`Wire::write_list`].
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

impl<'a> Wire<'a> for () {
    fn write(&self, _out: &mut Vec<u8>) {}

    fn read(_reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        Ok(())
    }
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

impl<'a> Wire<'a> for usize {
    fn write(&self, out: &mut Vec<u8>) {
        write_varint(*self as u64, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<usize, DecodeError> {
        let value = reader.varint()?;
        usize::try_from(value).map_err(|_| reader.error(format_args!("{value} is too large")))
    }
}

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
        let count = reader.count::<u8>()?;
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

macro_rules! wire_text {
    ($($type:ty),+) => {$(
        impl<'a> Wire<'a> for $type {
            fn write(&self, out: &mut Vec<u8>) {
                (&**self).write(out);
            }

            fn read(reader: &mut Reader<'a>) -> Result<$type, DecodeError> {
                Ok(<&str>::read(reader)?.into())
            }
        }
    )+};
}

wire_text!(Box<str>, Arc<str>, String);

impl<'a> Wire<'a> for QueueName {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_str().write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<QueueName, DecodeError> {
        QueueName::accepted(reader.read()?).map_err(|invalid| reader.error(invalid))
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
        let count = reader.count::<T>()?;
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
        reader.nested().map(Box::new)
    }
}

impl<'a, T: Wire<'a>, E: Wire<'a>> Wire<'a> for Result<T, E> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_ok().write(out);
        match self {
            Ok(value) => value.write(out),
            Err(error) => error.write(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Result<T, E>, DecodeError> {
        if bool::read(reader)? { T::read(reader).map(Ok) } else { E::read(reader).map(Err) }
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for [T; 3] {
    fn write(&self, out: &mut Vec<u8>) {
        T::write_list(self, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<[T; 3], DecodeError> {
        Ok([reader.read()?, reader.read()?, reader.read()?])
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

wire_newtype!(Timestamp, ShardId, ClaimToken, SessionId, Digest);

impl<'a> Wire<'a> for TaskId {
    fn write(&self, out: &mut Vec<u8>) {
        self.to_u128().write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<TaskId, DecodeError> {
        u128::read(reader).map(TaskId::from_u128)
    }
}

/// Encodes a struct as its fields, in this order. The order is the format: append, never reorder. A
/// function `fn(&Self) -> Result<(), Words>` after the fields may check how they fit together.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident $(<$life:lifetime>)? { $($field:ident),+ $(,)? } $(, $check:path)?) => {
        impl<'a> $crate::wire::Wire<'a> for $name $(<$life>)? {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)+
            }

            fn read(
                reader: &mut $crate::wire::Reader<'a>,
            ) -> Result<Self, $crate::DecodeError> {
                let read = $name { $($field: reader.read()?),+ };
                $($check(&read).map_err(|what| reader.error(what))?;)?
                Ok(read)
            }
        }
    };
}

/// Encodes an enum as one byte and the data of the variant, in this order. A number is never
/// reused; a variant whose data changes gets a new one.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $(
        $number:literal => $variant:ident $(($($item:ident),+))? $({ $($field:ident),+ $(,)? })?
    ),+ $(,)? }) => {
        impl<'a> $crate::wire::Wire<'a> for $name {
            fn write(&self, out: &mut Vec<u8>) {
                match self {$(
                    $name::$variant $(($($item),+))? $({ $($field),+ })? => {
                        out.push($number);
                        $($($item.write(out);)+)?
                        $($($field.write(out);)+)?
                    }
                )+}
            }

            fn read(
                reader: &mut $crate::wire::Reader<'a>,
            ) -> Result<Self, $crate::DecodeError> {
                match reader.byte()? {
                    $($number => {
                        $($(let $item = reader.read()?;)+)?
                        $($(let $field = reader.read()?;)+)?
                        Ok($name::$variant $(($($item),+))? $({ $($field),+ })?)
                    })+
                    other => {
                        let what = format!("unknown {} {other}", stringify!($name));
                        Err(reader.error(what))
                    }
                }
            }
        }
    };
}

/// Encodes an enum without data as one byte. A number is never reused.
macro_rules! wire_words {
    ($name:ident { $($number:literal => $variant:ident),+ $(,)? }) => {
        $crate::wire_enum!($name { $($number => $variant),+ });
    };
}

pub use {wire_enum, wire_struct};

pub(crate) use wire_words;

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
    fn a_false_count_is_rejected_before_memory_is_allocated() {
        let mut bytes = Vec::new();
        write_varint(u64::MAX, &mut bytes);
        assert!(Reader::new(&bytes).read::<Vec<u64>>().is_err());
        assert!(Reader::new(&bytes).read::<&[u8]>().is_err());
    }

    #[test]
    fn a_list_that_takes_too_much_memory_is_rejected() {
        let mut bytes = Vec::new();
        let count = FOREIGN_LISTS_BYTES_MAX / size_of::<Option<[u128; 3]>>() + 1;
        write_varint(count as u64, &mut bytes);
        bytes.resize(bytes.len() + count, 0);
        let error = Reader::foreign(&bytes).read::<Vec<Option<[u128; 3]>>>().unwrap_err();
        assert!(error.what.contains("take too much memory"), "{error}");
        assert_eq!(Reader::foreign(&bytes).read::<Vec<u8>>().unwrap().len(), count);
    }

    #[derive(Debug)]
    enum Doll {
        Whole,
        Inside(Box<Doll>),
    }
    wire_enum!(Doll { 0 => Whole, 1 => Inside(doll) });

    #[test]
    fn deeply_nested_values_are_rejected() {
        let mut bytes = vec![1; 1 << 20];
        let error = Reader::new(&bytes).read::<Doll>().unwrap_err();
        assert!(error.what.contains("values are nested more than 16 deep"), "{error}");
        bytes[16] = 0;
        let doll: Doll = Reader::new(&bytes).read().unwrap();
        let mut out = Vec::new();
        doll.write(&mut out);
        assert_eq!(out, bytes[..17]);
    }
}
