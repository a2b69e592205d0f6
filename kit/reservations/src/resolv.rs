//! Parses the file that `resolvConf` names, like the resolver.

use std::io;
use std::path::Path;

use cni_common::spec::{CniError, Code, Dns};
use ferrule_kernel::file;

/// Reads and parses the file.
///
/// # Errors
/// Code 5 with the reference's text.
pub fn read(path: &Path) -> Result<Dns, CniError> {
    match file::read_named(path) {
        Ok(text) => Ok(parse(&String::from_utf8_lossy(&text))),
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::NotFound => "no such file or directory".to_owned(),
                _ => error.to_string(),
            };
            Err(CniError::new(Code::Io, format!("open {}: {why}", path.display())))
        }
    }
}

/// Collects `nameserver`, `domain`, `search` and `options` lines. Ignores all other lines; a comment is a
/// whole line. Several `search` and `options` lines add up; the last `domain` line counts.
///
/// # References
/// resolv.conf(5).
pub fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        let (Some(keyword), Some(first)) = (words.next(), words.next()) else { continue };
        let all = || std::iter::once(first).chain(words).map(str::to_owned);
        match keyword {
            "nameserver" => dns.nameservers.push(first.to_owned()),
            "domain" => first.clone_into(&mut dns.domain),
            "search" => dns.search.extend(all()),
            "options" => dns.options.extend(all()),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line() {
        let dns = parse(
            "# comment\n; comment\n\nnameserver 192.0.2.1 ignored\n\tnameserver 2001:db8::1\r\ndomain a.example\n\
             domain b.example\nsearch one two\nsearch three\noptions ndots:5\noptions timeout:1 rotate\nnameserver\n\
             sortlist 10.0.0.0\nNAMESERVER 1.1.1.1\n",
        );
        assert_eq!(dns.nameservers, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(dns.domain, "b.example");
        assert_eq!(dns.search, ["one", "two", "three"]);
        assert_eq!(dns.options, ["ndots:5", "timeout:1", "rotate"]);
        assert!(parse("").is_empty());
    }
}
