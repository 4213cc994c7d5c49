//! Codec: the bytes of the control group's commands and state: a format byte, then the fields in
//! order, little-endian, with the length before each text and list.

use super::{InvalidControlBytes, Node, Placement};

/// The version of the encoding below; the first byte of a command and of a state.
pub(super) const FORMAT: u8 = 1;

pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new() -> Writer {
        Writer(vec![FORMAT])
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
    }

    pub(super) fn node(&mut self, node: &Node) {
        self.u128(node.instance);
        self.text(&node.address);
        self.text(&node.serves);
        self.text(&node.zone);
        self.u16(node.rules_max);
    }

    pub(super) fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.u32(numbers.len() as u32);
        numbers.for_each(|number| self.u64(number));
    }

    pub(super) fn placements(&mut self, placements: &[Placement]) {
        self.u32(placements.len() as u32);
        for placement in placements {
            self.u64(placement.node);
            self.u64(placement.replica);
        }
    }
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Reader<'a>, InvalidControlBytes> {
        let mut reader = Reader { bytes, at: 0 };
        match reader.u8()? {
            FORMAT => Ok(reader),
            _ => Err(InvalidControlBytes { at: 0, what: "unknown format" }),
        }
    }

    pub(super) fn invalid(&self, what: &'static str) -> InvalidControlBytes {
        InvalidControlBytes { at: self.at, what }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], InvalidControlBytes> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.invalid("ends too early"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidControlBytes> {
        Ok(self.take(N)?.try_into().expect("exactly N bytes were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, InvalidControlBytes> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, InvalidControlBytes> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, InvalidControlBytes> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, InvalidControlBytes> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn u128(&mut self) -> Result<u128, InvalidControlBytes> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub(super) fn text(&mut self) -> Result<String, InvalidControlBytes> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.invalid("text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(super) fn node(&mut self) -> Result<Node, InvalidControlBytes> {
        Ok(Node {
            instance: self.u128()?,
            address: self.text()?,
            serves: self.text()?,
            zone: self.text()?,
            rules_max: self.u16()?,
        })
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<u64>, InvalidControlBytes> {
        (0..self.u32()?).map(|_| self.u64()).collect()
    }

    pub(super) fn placements(&mut self) -> Result<Vec<Placement>, InvalidControlBytes> {
        let count = self.u32()?;
        (0..count).map(|_| Ok(Placement { node: self.u64()?, replica: self.u64()? })).collect()
    }

    pub(super) fn end(&self) -> Result<(), InvalidControlBytes> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.invalid("bytes left over")) }
    }
}
