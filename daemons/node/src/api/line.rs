//! The lines of a watch.

use std::pin::Pin;

use anyhow::Error;
use futures_util::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::kind::too_large;

/// The most bytes of a line that are kept. etcd keeps objects up to 1.5 MB.
const MAX_LINE: usize = 8 << 20;

/// A line, as far as it was read.
#[derive(Default)]
pub(super) struct Line {
    text: Vec<u8>,
    is_cut: bool,
}

impl Line {
    /// Reads to the end of the line: `true`; or to the end of the watch. Safe to cancel.
    pub(super) async fn read(&mut self, watch: &mut Pin<&mut impl AsyncBufRead>) -> std::io::Result<bool> {
        loop {
            let piece = watch.fill_buf().await?;
            if piece.is_empty() {
                return Ok(false);
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let len = end.map_or(piece.len(), |end| end + 1);
            let room = MAX_LINE.saturating_sub(self.text.len());
            self.text.extend_from_slice(&piece[..len.min(room)]);
            self.is_cut |= len > room;
            watch.consume_unpin(len);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether only its beginning is kept.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Why it cannot be read, if it is cut off.
    pub(super) fn too_large(&self) -> Error {
        too_large(&self.text)
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.is_cut = false;
        // One large object does not take memory for ever.
        self.text.shrink_to(64 << 10);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn lines_are_read_to_their_end_and_kept_to_a_limit() {
        let long = "x".repeat(MAX_LINE);
        let text = format!("one\n{long}y\ntwo\nrest");
        let mut watch = std::pin::pin!(futures_util::io::BufReader::new(Cursor::new(text)));
        let mut line = Line::default();
        for (expected, is_whole, is_cut) in
            [("one\n", true, false), (&*long, true, true), ("two\n", true, false), ("rest", false, false)]
        {
            assert_eq!(line.read(&mut watch).await.unwrap(), is_whole);
            assert_eq!((line.text() == expected.as_bytes(), line.is_cut()), (true, is_cut));
            line.clear();
            assert!(line.text.capacity() < 1 << 20);
        }
    }
}
