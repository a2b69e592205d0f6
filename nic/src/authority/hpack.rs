//! Finds the `:authority` in a block of header fields (HPACK, RFC 7541) and changes it in place.

/// `:authority` in the static table of HPACK (RFC 7541, appendix A).
const AUTHORITY: usize = 1;

/// Turns each `/` in the value of `:authority` into `.`. Walks through the fields of a block by their lengths (RFC 7541,
/// section 6), and ends at one that is not well formed.
pub(super) fn fields(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        // An indexed field and a new size of the table have no text.
        let (bits, has_text) = match first {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            _ => (4, true),
        };
        let index = integer(block, &mut at, bits)?;
        if !has_text {
            continue;
        }
        if index == 0 {
            // No client spells the name of a static entry.
            string(block, &mut at)?;
        }
        let huffman = block.get(at)? & 0x80 != 0;
        let value = string(block, &mut at)?;
        if index == AUTHORITY {
            let value = block.get_mut(value)?;
            if huffman { slashes_of_huffman(value) } else { slashes(value) }
        }
    }
    Some(())
}

/// The range of a text.
fn string(block: &[u8], at: &mut usize) -> Option<std::ops::Range<usize>> {
    let len = integer(block, at, 7)?;
    let start = *at;
    *at = start.checked_add(len).filter(|end| *end <= block.len())?;
    Some(start..*at)
}

/// An integer whose first byte has this many bits for it (RFC 7541, section 5.1).
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let most = (1 << bits) - 1;
    let mut value = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn slashes(value: &mut [u8]) {
    value.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'.');
}

/// The first code of each length, as in RFC 7541, appendix B; codes of one length follow each other. All printable ASCII
/// characters have at most 15 bits.
const CODES: [(u32, u32, u32); 10] = [
    (5, 0x0, 10),
    (6, 0x14, 26),
    (7, 0x5c, 32),
    (8, 0xf8, 6),
    (10, 0x3f8, 5),
    (11, 0x7fa, 3),
    (12, 0xffa, 2),
    (13, 0x1ff8, 6),
    (14, 0x3ffc, 2),
    (15, 0x7ffc, 3),
];

/// Turns the code of `/`, 011000, into that of `.`, 010111.
fn slashes_of_huffman(value: &mut [u8]) {
    let bits = value.len() * 8;
    let bit = |value: &[u8], at: usize| u32::from(value[at / 8] >> (7 - at % 8) & 1);
    let mut at = 0;
    while at < bits {
        let is_code = |(len, first, count): &&(u32, u32, u32)| {
            let end = at + *len as usize;
            end <= bits && {
                let code = (at..end).fold(0, |code, at| code << 1 | bit(value, at));
                (*first..first + count).contains(&code)
            }
        };
        // The rest is padding, or begins with a character that no path has.
        let Some((len, ..)) = CODES.iter().find(is_code) else { return };
        let code = (at..at + *len as usize).fold(0, |code, at| code << 1 | bit(value, at));
        if (*len, code) == (6, 0b01_1000) {
            for (position, new) in [0, 1, 0, 1, 1, 1].into_iter().enumerate() {
                let at = at + position;
                let mask = 1 << (7 - at % 8);
                value[at / 8] = if new == 1 { value[at / 8] | mask } else { value[at / 8] & !mask };
            }
        }
        at += *len as usize;
    }
}
