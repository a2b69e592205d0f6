//! The reasons for a word that is not ready.

use super::Word;

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    pub code: Code,
    /// What it is about: a node's name, a part or a network. Empty if it is this node as a whole.
    pub about: String,
    /// What is wrong, for people.
    pub text: String,
}

/// The kinds of reasons. README.md has a row for each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A part of the kernel could not be set up.
    Part,
    /// The conflist is missing, not ours, or cannot be written.
    Conflist,
}

impl Code {
    /// All codes, in the order of README.md.
    pub const ALL: [Code; 2] = [Code::Part, Code::Conflist];

    /// The word in metrics and events, such as `conflist`.
    pub fn key(self) -> &'static str {
        match self {
            Code::Part => "part",
            Code::Conflist => "conflist",
        }
    }

    /// What a node with this reason is at best.
    pub fn word(self) -> Word {
        match self {
            Code::Part | Code::Conflist => Word::NotReady,
        }
    }

    /// What to do, for people.
    pub fn remedy(self) -> &'static str {
        match self {
            Code::Part => "read the error; ferrule doctor names what the kernel lacks",
            Code::Conflist => "move the named file away, or choose another --conflist",
        }
    }
}
