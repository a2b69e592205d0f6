//! The wire format of protobuf: reads fields, and writes texts. Pure.
//!
//! # References
//! <https://protobuf.dev/programming-guides/encoding/>

/// Why bytes are no message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer or a boolean.
    Number(u64),
    /// A text, a message, or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The bytes of a message.
    ///
    /// # Errors
    /// It is a number.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) => Err(Malformed("a number in place of a message")),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// It is a number, or not UTF-8.
    pub fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }
}

/// The fields of a message in their order, with their numbers. Ends after an error.
#[derive(Clone, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed("a field that is cut off or of an unknown type")))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let len = self.number()?;
                Value::Bytes(self.take(usize::try_from(len).ok()?)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Appends a field with a text. Its number is at most 15.
pub fn put_text(message: &mut Vec<u8>, number: u8, text: &str) {
    message.push(number << 3 | 2);
    let mut len = text.len();
    while len >= 0x80 {
        message.push(0x80 | (len & 0x7f) as u8);
        len >>= 7;
    }
    message.push(len as u8);
    message.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_types() {
        // 1: 300; 2: "hi"; 3: fixed64; 4: fixed32; 16: a negative number has ten bytes
        let bytes = b"\x08\xac\x02\x12\x02hi\x19\0\0\0\0\0\0\0\0\x25\0\0\0\0\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        let fields: Vec<_> = Fields(bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            fields,
            [
                (1, Value::Number(300)),
                (2, Value::Bytes(b"hi")),
                (3, Value::Bytes(&[0; 8])),
                (4, Value::Bytes(&[0; 4])),
                (16, Value::Number(u64::MAX)),
            ]
        );
        assert_eq!(fields[1].1.text(), Ok("hi"));
        assert!(fields[0].1.text().is_err() && Value::Bytes(b"\xff").text().is_err());
    }

    #[test]
    fn malformed_bytes_end_the_message() {
        for bytes in [
            &b"\x08"[..],
            b"\x12\x05hi",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01hi",
            b"\x0b\x0c",
            b"\x25\0\0",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            let mut fields = Fields(bytes);
            assert!(fields.next().unwrap().is_err(), "{bytes:?}");
            assert_eq!(fields.next(), None);
        }
    }

    #[test]
    fn a_written_text_is_read_again() {
        let long = "n".repeat(300);
        let mut message = Vec::new();
        put_text(&mut message, 1, &long);
        put_text(&mut message, 2, "shop");
        let texts: Vec<_> = Fields(&message).map(|field| field.unwrap().1.text().unwrap()).collect();
        assert_eq!(texts, [&long, "shop"]);
    }
}
