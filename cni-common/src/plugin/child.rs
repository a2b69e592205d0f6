//! A delegate as a process: its input, and its output as far as there is a limit.

use std::io::{self, Read, Write as _};
use std::os::fd::AsFd;
use std::process::{Child, Output};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The guaranteed capacity of a pipe in bytes: one page. A user who exceeds the kernel's limit for pipe
/// buffers gets only this.
const PIPE_CAPACITY: usize = 4096;
/// The most that a delegate may print to one stream in bytes, as much as a request may have.
const OUTPUT_LIMIT: usize = 4 << 20;

/// Writes the input to the child and reads its output until the child exits. An input that may exceed the
/// capacity of the pipe is written by a separate thread: a child that fills its output pipe before it reads
/// would otherwise deadlock with us.
///
/// # Errors
/// Also if the child prints without end; it is killed then.
pub(super) fn write_and_wait(mut child: Child, input: &[u8]) -> io::Result<Output> {
    let stdin = child.stdin.take();
    let write = || {
        if let Some(mut stdin) = stdin {
            // Ignore EPIPE: a delegate that exits without reading its configuration reports a better error.
            let _ = stdin.write_all(input);
        }
    };
    if input.len() <= PIPE_CAPACITY {
        write();
        return read_and_wait(child);
    }
    thread::scope(|scope| {
        thread::Builder::new().spawn_scoped(scope, write)?;
        read_and_wait(child)
    })
}

fn read_and_wait(mut child: Child) -> io::Result<Output> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let read = match (child.stdout.take(), child.stderr.take()) {
        (Some(out), Some(err)) => read_both((out, &mut stdout), (err, &mut stderr)),
        _ => Ok(()),
    };
    if let Err(error) = read {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(Output { status: child.wait()?, stdout, stderr })
}

fn read_both(out: (impl Read + AsFd, &mut Vec<u8>), err: (impl Read + AsFd, &mut Vec<u8>)) -> io::Result<()> {
    let (mut out, mut err) = ((Some(out.0), out.1), (Some(err.0), err.1));
    loop {
        let fds = [out.0.as_ref().map(AsFd::as_fd), err.0.as_ref().map(AsFd::as_fd)];
        let mut open: Vec<PollFd<'_>> =
            fds.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        if open.is_empty() {
            return Ok(());
        }
        match poll(&mut open, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            polled => polled?,
        };
        let mut ready = open.iter().map(|fd| fd.any().unwrap_or(true));
        let [is_out, is_err] = fds.map(|fd| fd.is_some() && ready.next().unwrap_or(false));
        drop(ready);
        if is_out {
            read_some(&mut out.0, out.1)?;
        }
        if is_err {
            read_some(&mut err.0, err.1)?;
        }
    }
}

/// Reads the available bytes. Drops the stream at its end.
fn read_some(stream: &mut Option<impl Read>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let Some(open) = stream else { return Ok(()) };
    let mut part = [0; 4096];
    match open.read(&mut part) {
        Ok(0) => *stream = None,
        Ok(count) => bytes.extend(part.get(..count).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error),
    }
    if bytes.len() > OUTPUT_LIMIT {
        return Err(io::Error::other(format!("it prints more than {OUTPUT_LIMIT} bytes")));
    }
    Ok(())
}
