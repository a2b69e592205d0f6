//! Reads chains and rules by name, so that the kernel does not send the chains of other programs.

use std::net::IpAddr;

use nix::errno::Errno;

use super::batch::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, HOOK_POINT, HOOK_PRIORITY, LIST_ELEMENT, RULE_CHAIN,
    RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, RULE_USERDATA, TABLE_NAME, chain_request, request,
    rule_request,
};
use super::encode::{DATA, NAME};
use super::matches::End;
use super::{
    CmpOp, Error, Expr, Family, Hook, HookPoint, PayloadBase, Policy, Table, Verdict, generation, kind,
    userdata,
};
use crate::ip::{IpFamily, from_octets};
use crate::netlink;
use crate::netlink::message::{F_DUMP, attrs, find_attr, text};
use crate::netlink::{Answer, Message, Socket};

pub(super) const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
/// Length of `struct nfgenmsg`, which precedes the attributes of an answer.
pub(super) const HEADER: usize = 4;
/// `NFTA_CHAIN_USE`.
const CHAIN_USE: u16 = 6;
/// `NFTA_COUNTER_PACKETS`.
const COUNTER_PACKETS: u16 = 2;
/// `NFTA_MATCH_NAME`.
const MATCH_NAME: u16 = 1;
/// `NFTA_MATCH_INFO`.
const MATCH_INFO: u16 = 3;

/// An existing chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The use counter of the kernel: the number of rules in the chain plus the number of jumps to it.
    pub uses: u32,
    /// Its hook, if it is a base chain.
    pub base: Option<Base>,
}

impl Chain {
    /// The chain in the body of an answer.
    pub fn parse(body: &[u8]) -> Chain {
        let attributes = body.get(HEADER..).unwrap_or_default();
        let base = find_attr(attributes, CHAIN_HOOK).map(|hook| Base {
            point: find_attr(hook, HOOK_POINT).map_or(0, be32),
            priority: find_attr(hook, HOOK_PRIORITY).map_or(0, be32).cast_signed(),
            // NF_DROP
            drops: find_attr(attributes, CHAIN_POLICY).map(be32) == Some(0),
        });
        Chain { uses: find_attr(attributes, CHAIN_USE).map_or(0, be32), base }
    }
}

/// What an existing base chain has in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// `NF_INET_*`: the number of the hook.
    point: u32,
    /// The priority.
    priority: i32,
    /// Whether its policy is `drop`.
    pub drops: bool,
}

impl Base {
    /// Whether the chain is on this hook.
    pub fn is_on(&self, point: HookPoint) -> bool {
        self.point == point as u32
    }

    /// Whether hook, priority and policy are these.
    pub fn is(&self, hook: &Hook) -> bool {
        let drops = hook.policy == Policy::Drop;
        self.is_on(hook.point) && self.priority == hook.priority && self.drops == drops
    }
}

/// An undecoded expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawExpr {
    /// The kernel's name of the expression, such as `payload`.
    pub name: String,
    /// Its netlink attributes (`NFTA_EXPR_DATA`).
    pub data: Vec<u8>,
}

/// A rule in an answer of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Identifies the rule in its table, for [`super::Batch::delete_rule`].
    pub handle: u64,
    /// The comment in the userdata of the rule: from `nft`, or from an `iptables` that stores comments there.
    pub comment: Option<String>,
    /// Its expressions in order.
    pub expressions: Vec<RawExpr>,
}

/// Checks that the kernel supports nf_tables for the family: asks for a table that cannot exist and expects
/// `ENOENT`.
///
/// # Errors
/// Any other error of the kernel.
pub fn probe(socket: &mut Socket, family: Family) -> Result<(), netlink::Error> {
    let no_such = Table::new(family, "");
    let request = Message::new(kind(GET_TABLE), 0, &no_such.header()).attr_text(TABLE_NAME, no_such.name);
    match socket.request(request) {
        Err(error) if error.errno != Errno::ENOENT => Err(error),
        _ => Ok(()),
    }
}

/// Whether the error means that the requested object does not exist.
pub(super) fn absent(socket: &mut Socket, error: &netlink::Error) -> bool {
    match error.errno {
        // No such table or chain. A kernel without the family returns one of the others.
        Errno::ENOENT | Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP => true,
        // A kernel without nf_tables refuses every request so, a kernel with it only those that it does not understand.
        Errno::EINVAL => generation(socket).is_err_and(|error| error.source.errno == Errno::EINVAL),
        _ => false,
    }
}

/// The bodies of an answer; none if the object does not exist. `what` is the text for errors.
pub(super) fn found(
    socket: &mut Socket,
    answer: Answer,
    what: impl FnOnce() -> String,
) -> Result<Vec<Vec<u8>>, Error> {
    match answer {
        Err(error) if absent(socket, &error) => Ok(Vec::new()),
        answer => answer.map_err(|source| Error { request: what(), source }),
    }
}

/// As [`found`], for the answer to a dump.
pub(super) fn dump(
    socket: &mut Socket,
    request: Message,
    what: impl FnOnce() -> String,
) -> Result<Vec<Vec<u8>>, Error> {
    let answer = socket.request(request);
    found(socket, answer, what)
}

/// The text of an attribute in the body of an answer; empty if it has none.
pub(super) fn name(body: &[u8], kind: u16) -> String {
    body.get(HEADER..).and_then(|attributes| find_attr(attributes, kind)).map(text).unwrap_or_default()
}

/// Finds several chains in one round trip. The result has one entry for each of `wanted`: `None` if the
/// chain does not exist.
pub fn chains(socket: &mut Socket, wanted: &[(Table<'_>, &str)]) -> Result<Vec<Option<Chain>>, Error> {
    let requests: Vec<Message> =
        wanted.iter().map(|(table, chain)| chain_request(GET_CHAIN, 0, *table, chain).one_answer()).collect();
    let answers = socket.requests(requests).into_iter().zip(wanted);
    let read = |(answer, (table, chain)): (Answer, &(Table<'_>, &str))| {
        let bodies = found(socket, answer, || format!("get chain {table} {chain}"))?;
        Ok(bodies.first().map(|body| Chain::parse(body)))
    };
    answers.map(read).collect()
}

/// All chains of a table with their names; empty if the table does not exist. Slow if other tables have many
/// chains, because the kernel iterates over all chains of the family.
pub fn all_chains(socket: &mut Socket, table: Table<'_>) -> Result<Vec<(String, Chain)>, Error> {
    let request = request(GET_CHAIN, F_DUMP, table).attr_text(CHAIN_TABLE, table.name);
    let mut bodies = dump(socket, request, || format!("list chains of {table}"))?;
    bodies.retain(|body| name(body, CHAIN_TABLE) == table.name);
    Ok(bodies.iter().map(|body| (name(body, CHAIN_NAME), Chain::parse(body))).collect())
}

/// A base chain with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The family and the name of its table.
    pub table: (Family, String),
    /// Its name.
    pub name: String,
    /// Its hook and policy.
    pub base: Base,
}

/// The base chains of all tables for IP packets; empty if the kernel has no nf_tables. Slow if the tables have many chains.
pub fn base_chains(socket: &mut Socket) -> Result<Vec<BaseChain>, Error> {
    let request = Message::new(kind(GET_CHAIN), F_DUMP, &super::request_header());
    let read = |body: &Vec<u8>| {
        let families = [Family::Inet, Family::Ip, Family::Ip6];
        let family = families.into_iter().find(|family| Some(&(*family as u8)) == body.first())?;
        let base = Chain::parse(body).base?;
        Some(BaseChain { table: (family, name(body, CHAIN_TABLE)), name: name(body, CHAIN_NAME), base })
    };
    Ok(dump(socket, request, || "list chains".to_owned())?.iter().filter_map(read).collect())
}

/// The rules of a chain in their order; empty if the chain does not exist.
pub fn rules(socket: &mut Socket, table: Table<'_>, chain: &str) -> Result<Vec<Rule>, Error> {
    let request = rule_request(GET_RULE, F_DUMP, table, chain);
    let bodies = dump(socket, request, || format!("list rules of {table} {chain}"))?;
    let of_chain = |(of, rule)| (of == chain).then_some(rule);
    Ok(read_rules(&bodies, table).filter_map(of_chain).collect())
}

/// All rules of a table, each with the name of its chain; those of one chain are in their order. Empty if the table
/// does not exist.
pub fn all_rules(socket: &mut Socket, table: Table<'_>) -> Result<Vec<(String, Rule)>, Error> {
    let request = request(GET_RULE, F_DUMP, table).attr_text(RULE_TABLE, table.name);
    Ok(read_rules(&dump(socket, request, || format!("list rules of {table}"))?, table).collect())
}

/// The rules of this table with their chains. Some kernels do not filter a dump and return the rules of all tables.
fn read_rules(bodies: &[Vec<u8>], table: Table<'_>) -> impl Iterator<Item = (String, Rule)> {
    let of_table = bodies.iter().filter(move |body| name(body, RULE_TABLE) == table.name);
    of_table.map(|body| (name(body, RULE_CHAIN), Rule::parse(body)))
}

pub(super) fn read_expr(element: &[u8]) -> RawExpr {
    RawExpr {
        name: find_attr(element, NAME).map(text).unwrap_or_default(),
        data: find_attr(element, DATA).unwrap_or_default().to_vec(),
    }
}

impl RawExpr {
    /// The packets that it has counted, if it is a counter.
    pub(super) fn packets(&self) -> Option<u64> {
        let packets = find_attr(&self.data, COUNTER_PACKETS).filter(|_| self.name == "counter")?;
        packets.try_into().ok().map(u64::from_be_bytes)
    }

    /// Whether the expression carries this extension of iptables: a `match` (`-m NAME`) or a `target` (`-j NAME`).
    fn carries(&self, kind: &str, name: &str) -> bool {
        self.name == kind && find_attr(&self.data, MATCH_NAME).is_some_and(|found| text(found) == name)
    }
}

impl Rule {
    /// The rule in the body of an answer.
    pub fn parse(body: &[u8]) -> Rule {
        let mut rule = Rule::default();
        for (kind, value) in attrs(body.get(HEADER..).unwrap_or_default()) {
            match kind {
                RULE_HANDLE => rule.handle = value.try_into().map_or(0, u64::from_be_bytes),
                RULE_USERDATA => rule.comment = userdata::decode(value),
                RULE_EXPRESSIONS => {
                    let elements = attrs(value).filter(|(kind, _)| *kind == LIST_ELEMENT);
                    rule.expressions = elements.map(|(_, element)| read_expr(element)).collect();
                }
                _ => {}
            }
        }
        rule
    }

    /// The decoded expressions. `None` if the rule contains an expression that [`Expr`] does not model.
    pub fn decode(&self) -> Option<Vec<Expr>> {
        self.expressions.iter().map(RawExpr::decode).collect()
    }

    /// As [`Rule::decode`], without what does not change the rule's effect: counters, and comments of iptables.
    pub fn effect(&self) -> Option<Vec<Expr>> {
        let has_effect = |expr: &&RawExpr| expr.name != "counter" && !expr.carries("match", "comment");
        self.expressions.iter().filter(has_effect).map(RawExpr::decode).collect()
    }

    /// The packets that its counter has seen; `None` if it has none.
    pub fn packets(&self) -> Option<u64> {
        self.expressions.iter().find_map(RawExpr::packets)
    }

    /// Whether the rule has an expression with this name.
    pub fn has(&self, name: &str) -> bool {
        self.expressions.iter().any(|expr| expr.name == name)
    }

    /// The verdicts in the rule: usually one, or none.
    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        let verdicts = self.expressions.iter().filter(|expr| expr.name == "immediate");
        verdicts.filter_map(|expr| match expr.decode()? {
            Expr::Verdict(verdict) => Some(verdict),
            _ => None,
        })
    }

    /// The chain to which the rule jumps (or goes).
    pub fn jump_target(&self) -> Option<String> {
        self.verdicts().find_map(|verdict| match verdict {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        })
    }

    /// The text of `-m comment` in a rule of iptables-nft, which stores it as a `match` expression.
    pub fn compat_comment(&self) -> Option<String> {
        let expr = self.expressions.iter().find(|expr| expr.carries("match", "comment"))?;
        find_attr(&expr.data, MATCH_INFO).map(text)
    }

    /// The source address that the rule matches. `None` if it does not match exactly one address.
    pub fn source(&self) -> Option<IpAddr> {
        self.address(End::Source)
    }

    /// The source or destination address that the rule matches. `None` if it does not match exactly one.
    pub fn address(&self, end: End) -> Option<IpAddr> {
        self.expressions.windows(2).find_map(|pair| {
            let [load, cmp] = pair else { return None };
            if load.name != "payload" || cmp.name != "cmp" {
                return None;
            }
            match (load.decode()?, cmp.decode()?) {
                (
                    Expr::Payload { base: PayloadBase::Network, offset, len, .. },
                    Expr::Cmp { op: CmpOp::Eq, value, .. },
                ) => {
                    let address = from_octets(&value)?;
                    (end.position(IpFamily::of(address)) == (offset, len)).then_some(address)
                }
                _ => None,
            }
        })
    }

    /// Whether the rule accepts packets.
    pub fn accepts(&self) -> bool {
        self.verdicts().any(|verdict| verdict == Verdict::Accept)
    }

    /// Whether the rule is for every packet: it has no condition.
    pub fn is_unconditional(&self) -> bool {
        self.expressions.iter().all(|expr| match expr.name.as_str() {
            "counter" | "immediate" | "log" | "reject" | "target" => true,
            _ => expr.carries("match", "comment"),
        })
    }

    /// What becomes of the packets that meet the conditions; a rejected packet is dropped. `None` if they go on to the next rule.
    pub fn verdict(&self) -> Option<Verdict> {
        let rejects = |expr: &RawExpr| expr.name == "reject" || expr.carries("target", "REJECT");
        self.verdicts().next().or_else(|| self.expressions.iter().any(rejects).then_some(Verdict::Drop))
    }

    /// Whether the rule drops or rejects every packet.
    pub fn drops_everything(&self) -> bool {
        self.is_unconditional() && self.verdict() == Some(Verdict::Drop)
    }

    /// Whether the rule has this match of iptables (`-m NAME`).
    pub fn has_match(&self, name: &str) -> bool {
        self.expressions.iter().any(|expr| expr.carries("match", name))
    }
}

pub(super) fn be32(value: &[u8]) -> u32 {
    value.try_into().map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
