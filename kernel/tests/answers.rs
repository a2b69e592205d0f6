//! Which request an answer belongs to, in a separate network namespace. Only the last request of a datagram is
//! acknowledged. The tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::isolated;
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::{Answer, LinkId, Message, Socket, addr, qdisc};
use ferrule_kernel::nftables::{Batch, Expr, Family, Table, Verdict, chains, generation};
use nix::errno::Errno;

const LO: u32 = 1;
const TABLE: Table<'static> = Table::new(Family::Inet, "test");

/// The number of bodies of each answer, or its error.
fn outcomes(answers: Vec<Answer>) -> Vec<Result<usize, Errno>> {
    answers.into_iter().map(|answer| answer.map(|bodies| bodies.len()).map_err(|error| error.errno)).collect()
}

fn set_up() -> Message {
    link::set_flags(LO, IFF_UP, IFF_UP)
}

fn lo() -> Message {
    link::get(LinkId::Index(LO))
}

fn missing() -> Message {
    link::get(LinkId::Name("missing"))
}

fn add_address() -> Message {
    addr::add(LO, "10.0.0.1/32".parse().unwrap(), 0)
}

#[test]
fn every_request_has_its_own_answer() {
    isolated(|_| {
        let mut socket = Socket::route().unwrap();
        let mut ask = |messages: Vec<Message>| outcomes(socket.requests(messages));
        // The kernel sends nothing for the built-in qdisc of a link that has never been up.
        assert_eq!(ask(vec![lo(), qdisc::get(LO, qdisc::ROOT)]), [Ok(1), Ok(0)]);
        // The kernel also takes the requests behind a failed one. No answer mixes with those of the next datagram.
        assert_eq!(
            ask(vec![missing(), add_address(), lo(), add_address(), set_up()]),
            [Err(Errno::ENODEV), Ok(0), Ok(1), Err(Errno::EEXIST), Ok(0)]
        );
        // The last one finds an object, which nothing acknowledges; one finds none; a change that fails.
        assert_eq!(ask(vec![set_up(), lo()]), [Ok(0), Ok(1)]);
        assert_eq!(ask(vec![lo(), missing()]), [Ok(1), Err(Errno::ENODEV)]);
        assert_eq!(ask(vec![lo(), add_address()]), [Ok(1), Err(Errno::EEXIST)]);
        // Changes and a request for one object before a dump.
        let dump = || addr::list(LO);
        assert_eq!(ask(vec![missing(), set_up(), lo(), dump()]), [Err(Errno::ENODEV), Ok(0), Ok(1), Ok(3)]);
        assert_eq!(ask(vec![dump()]), [Ok(3)]);
        assert_eq!(ask(Vec::new()), []);
    });
}

#[test]
fn a_batch_fails_with_the_error_of_its_first_bad_request() {
    isolated(|socket| {
        let chain = |socket: &mut Socket| chains(socket, &[(TABLE, "c")]).unwrap() != [None];
        let jump = [Expr::Verdict(Verdict::Jump("none".to_owned()))];
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "c", None, None).delete_chain(TABLE, "first");
        batch.add_rule(TABLE, "c", &jump, None).add_chain(TABLE, "d", None, None);
        let error = batch.commit(socket).unwrap_err();
        assert_eq!((error.request.as_str(), error.is_not_found()), ("delete chain inet test first", true));
        assert!(!chain(socket), "the batch is atomic");

        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "c", None, None);
        let before = generation(socket).unwrap();
        batch.commit_at(socket, before).unwrap();
        assert!(chain(socket));

        // An error of the whole batch.
        let mut batch = Batch::new();
        batch.delete_chain(TABLE, "c");
        let error = batch.commit_at(socket, before).unwrap_err();
        assert_eq!((error.request.as_str(), error.is_outdated()), ("commit nf_tables batch", true));
        assert!(chain(socket));
    });
}

#[test]
fn nothing_is_sent_if_a_request_is_too_long() {
    isolated(|netfilter| {
        let mut route = Socket::route().unwrap();
        let too_long = Message::new(16, 0, &[0; 16]).attr(20, &[b'x'; 65_532]);
        let answers = outcomes(route.requests(vec![add_address(), too_long]));
        assert_eq!(answers, [Err(Errno::EMSGSIZE); 2]);
        assert_eq!(route.addresses(LO).unwrap(), []);

        let mut batch = Batch::new();
        let steps = vec![Expr::Verdict(Verdict::Accept); 3_000];
        batch.add_table(TABLE, None).add_chain(TABLE, "c", None, None).add_rule(TABLE, "c", &steps, None);
        let error = batch.commit(netfilter).unwrap_err();
        assert_eq!(error.source.errno, Errno::EMSGSIZE);
        assert!(error.to_string().contains("attribute 4 has"), "{error}");
        assert_eq!(chains(netfilter, &[(TABLE, "c")]).unwrap(), [None]);
    });
}
