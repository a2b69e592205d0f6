//! `ferrule-node import`: claims the blocks in which whereabouts has addresses. Nodes give no address of them.

use std::net::IpAddr;

use anyhow::{Result, bail, ensure};
use cni_common::line::Line;
use ferrule_blocks::block::{Block, Size, check_domain};
use ferrule_blocks::ledger::Claim;
use ferrule_blocks::plan::free_slot;
use ferrule_blocks::range::Fixed;
use ipnetwork::IpNetwork;

use super::api::{Api, Created};
use super::object::Claimant;
use super::whereabouts::{self, Live};
use crate::arguments::{Import, Options};

/// Node, store and network of the claims. A store has 32 digits, so no daemon has this one.
const NAME: &str = "whereabouts";

/// Claims the blocks. Returns the text to print, and whether no node had one of them.
///
/// # Errors
/// The API server does not answer, or its objects contradict the options. Blocks that were claimed before stay claimed; another run does the rest.
pub async fn run(options: Options, import: &Import) -> Result<(String, bool)> {
    let domain = &import.domain;
    if let Err(why) = check_domain(domain) {
        bail!(why);
    }
    let claimant = Claimant {
        node: NAME.to_owned(),
        machine: String::new(),
        store: NAME.to_owned(),
        boot: String::new(),
    };
    let api = Api::new(options, claimant);
    let ranges = api.ranges(domain).await?;
    let subnets = subnets(import, &ranges)?;
    let mut claims = api.list(domain).await?;
    let (pools, reservations) =
        (api.whereabouts("ippools").await?, api.whereabouts("overlappingrangeipreservations").await?);
    let live = match whereabouts::live(&pools, &reservations) {
        Ok(live) => live,
        Err(why) => bail!(why),
    };
    // Ranges of one subnet may have blocks of different sizes.
    let size_of = |ip: IpAddr| {
        let of_range = ranges.iter().find(|range| range.contains(ip)).map(|range| range.block_size);
        let mut of_subnet = subnets.iter().filter(|(subnet, _)| subnet.contains(ip)).map(|(_, size)| *size);
        of_subnet.next().map(|size| of_range.unwrap_or(size))
    };
    let wanted = whereabouts::blocks(&live, size_of);
    let (mut lines, mut is_clean) = (Vec::new(), true);
    for (block, ips) in &wanted {
        let known = claims.iter().find(|claim| claim.block.overlaps(block)).cloned();
        let claim = match known {
            None if import.dry_run => None,
            None => Some(claim(&api, *block, domain, &mut claims).await?),
            known => known,
        };
        let (name, count) = (block.name(domain), ips.len());
        match claim {
            Some(claim) if claim.store != NAME => {
                is_clean = false;
                lines.extend(ips.iter().map(|ip| {
                    format!(
                        "{name}: node {} has it, and whereabouts has {ip} of pod {}",
                        claim.node,
                        pod(&live, ip)
                    )
                }));
            }
            Some(_) => lines.push(format!("{name}: claimed for {count} addresses of whereabouts")),
            None => lines.push(format!("{name}: would be claimed for {count} addresses of whereabouts")),
        }
    }
    let has_none = |block: &Block| !wanted.keys().any(|other| other.overlaps(block));
    let is_empty = |claim: &&Claim| claim.store == NAME && has_none(&claim.block);
    lines.extend(claims.iter().filter(is_empty).map(|claim| {
        let name = claim.block.name(domain);
        format!("{name}: whereabouts has no address of it any more: kubectl delete addressblock {name}")
    }));
    // Names of pods are foreign text.
    Ok((lines.iter().map(|line| format!("{}\n", Line::new(line))).collect(), is_clean))
}

fn pod<'l>(live: &'l Live, ip: &IpAddr) -> &'l str {
    live.get(ip).map_or("", String::as_str)
}

async fn claim(api: &Api, block: Block, domain: &str, claims: &mut Vec<Claim>) -> Result<Claim> {
    let slot = free_slot(NAME, NAME, claims);
    let claim = match api.create(block, domain, NAME, slot).await? {
        Created::Done(claim) => Some(claim),
        Created::Taken => api.get(block, domain).await?,
    };
    let Some(claim) = claim else { bail!("the object {} is no claim", block.name(domain)) };
    claims.push(claim.clone());
    Ok(claim)
}

/// The subnets with their blocks' sizes: as the domain's object says, if it has them.
fn subnets(import: &Import, known: &[Fixed]) -> Result<Vec<(IpNetwork, Size)>> {
    let mut found = Vec::new();
    for subnet in &import.subnet {
        ensure!(subnet.ip() == subnet.network(), "--subnet {subnet}: it has host bits");
        let of_domain = known.iter().find(|range| range.subnet == *subnet).map(|range| range.block_size);
        let size = match (of_domain, import.block_size) {
            (Some(size), Some(given)) if size != given => {
                bail!(
                    "the domain {} has blocks of {} addresses in {subnet}, not {}",
                    import.domain,
                    size.count(),
                    given.count()
                )
            }
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => Fixed::usual_size(*subnet),
        };
        found.push((*subnet, size));
    }
    Ok(found)
}
