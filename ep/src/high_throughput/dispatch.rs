//! Dispatch: ranks send tokens between hosts, and then within each host.

use std::time::Instant;

use super::received::{self, Handle, Received, first_rows};
use super::routes::Routes;
use super::transfer::Transfer;
use super::{HighThroughput, Tokens};
use crate::error::Result;
use crate::plan::rows::RowFormat;

/// The rows that this rank forwards to the others of its host.
struct Passed {
    /// For each source, the consecutive rows that other ranks of this host get.
    rows: Vec<Vec<u8>>,
    /// For each source, which ranks of this host get each of its rows.
    masks: Vec<Vec<u64>>,
}

impl Passed {
    /// The rows for each rank, ordered by source. Each is given by its source and its offset.
    fn for_ranks(&self, routes: &Routes<'_>, row: usize) -> Vec<Vec<(usize, usize)>> {
        let mut found = vec![Vec::new(); self.rows.len()];
        let own = routes.hosts.bit(routes.me);
        for source in routes.passed() {
            for (i, mask) in self.masks[source].iter().filter(|&mask| mask & !own != 0).enumerate() {
                for &rank in routes.here().iter().filter(|&&rank| rank != routes.me) {
                    if mask & routes.hosts.bit(rank) != 0 {
                        found[rank].push((source, i * row));
                    }
                }
            }
        }
        found
    }
}

/// A reader of a row in local memory.
fn reader(row: &[u8]) -> impl FnMut(usize, &mut [u8]) -> Result<()> + '_ {
    |at, part| {
        part.copy_from_slice(&row[at..][..part.len()]);
        Ok(())
    }
}

/// The mask at the end of a row.
fn mask_of(row: &[u8], format: RowFormat) -> u64 {
    let at = format.rest_at() + format.rest() - format.mask;
    row[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

impl HighThroughput {
    /// Sends tokens on the routes of a handle. Returns the rows that have arrived and the masks of those that were
    /// forwarded.
    pub(super) fn send_tokens(
        &mut self,
        tokens: &Tokens<'_>,
        format: RowFormat,
        handle: &Handle,
    ) -> Result<(Received, Vec<Vec<u64>>)> {
        let sent = self.send_both_ways(tokens, format, handle);
        self.poison_on_err(sent)
    }

    fn send_both_ways(
        &mut self,
        tokens: &Tokens<'_>,
        format: RowFormat,
        handle: &Handle,
    ) -> Result<(Received, Vec<Vec<u64>>)> {
        let (rt, since) = (&self.rows.runtime().clone(), Instant::now());
        rt.check_joined()?;
        let mut received = Received::new(format, handle.rows())?;
        received::must_have_room(handle.passed.iter().map(|&rows| rows as usize).sum(), format)?;
        let passed = self.send_between(tokens, format, handle, &mut received)?;
        let since = self.statistics.phase(rt, "between hosts", since);
        self.send_within(tokens, format, handle, &passed, &mut received)?;
        self.statistics.phase(rt, "within the host", since);
        Ok((received, passed.masks))
    }

    /// Sends each token once to each other host, and receives the tokens that reach this host through this rank.
    fn send_between(
        &mut self,
        tokens: &Tokens<'_>,
        format: RowFormat,
        handle: &Handle,
        received: &mut Received,
    ) -> Result<Passed> {
        let (me, ranks, share) = (self.me(), self.ranks(), handle.layout.share());
        let routes = Routes { hosts: &self.hosts, handle, me };
        let (mut lists, mut out) = (vec![Vec::new(); ranks], vec![0; ranks]);
        for (to, list) in routes.tokens_between() {
            out[to] = list.len() as u32;
            lists[to] = list;
        }
        let mut passed = Passed { rows: vec![Vec::new(); ranks], masks: vec![Vec::new(); ranks] };
        let mut next = first_rows(&handle.received);
        let hosts = &self.hosts;
        let mut row_bytes = vec![0; format.bytes()];
        let transfer = Transfer::new(&mut self.rows, &mut self.statistics, format, self.limit, "dispatch");
        transfer.run(
            &out,
            &handle.passed,
            |to, row, write| {
                let token = lists[to][row] as usize;
                let mut rest = Vec::with_capacity(format.rest());
                if let Some((topk, weights)) = tokens.topk {
                    rest.extend(topk.of(token).iter().flat_map(|&expert| (expert as i32).to_ne_bytes()));
                    rest.extend(weights[token * topk.k()..][..topk.k()].iter().flat_map(|weight| weight.to_ne_bytes()));
                }
                rest.extend((token as u32).to_ne_bytes());
                let gets = &handle.layout.in_rank()[token * ranks..][..ranks];
                let members = hosts.members(hosts.of(to)).iter().filter(|&&rank| gets[rank]);
                rest.extend(members.fold(0, |mask, &rank| mask | hosts.bit(rank)).to_ne_bytes());
                tokens.write(token, format, &rest, write)
            },
            |from, _, read| {
                read(0, &mut row_bytes)?;
                let mask = mask_of(&row_bytes, format);
                if mask & !hosts.bit(me) != 0 {
                    passed.rows[from].extend_from_slice(&row_bytes);
                }
                passed.masks[from].push(mask);
                if mask & hosts.bit(me) != 0 {
                    received::localize(&mut row_bytes[format.rest_at()..], format.indices, me, share);
                    received.take(next[from], &mut reader(&row_bytes))?;
                    next[from] += 1;
                }
                Ok(())
            },
        )?;
        Ok(passed)
    }

    /// Sends this rank's own tokens, and those that it forwards, to the ranks of its host.
    fn send_within(
        &mut self,
        tokens: &Tokens<'_>,
        format: RowFormat,
        handle: &Handle,
        passed: &Passed,
        received: &mut Received,
    ) -> Result<()> {
        let (me, share) = (self.me(), handle.layout.share());
        let routes = Routes { hosts: &self.hosts, handle, me };
        let own: Vec<Vec<u32>> = (0..self.ranks()).map(|rank| handle.layout.tokens_for(rank)).collect();
        let ((out, into), rows_from) = (routes.within(), routes.rows_from());
        let of_others = passed.for_ranks(&routes, format.bytes());
        let limit = self.limit_of_forwarded();
        let transfer = Transfer::new(&mut self.rows, &mut self.statistics, format, limit, "dispatch");
        transfer.run(
            &out,
            &into,
            |to, row, write| {
                let Some(&token) = own[to].get(row) else {
                    let (source, at) = of_others[to][row - own[to].len()];
                    let mut bytes = passed.rows[source][at..][..format.bytes()].to_vec();
                    received::localize(&mut bytes[format.rest_at()..], format.indices, to, share);
                    return write(0, &bytes);
                };
                let token = token as usize;
                let mut rest = Vec::with_capacity(format.rest());
                if let Some((topk, weights)) = tokens.topk {
                    received::slots(topk.of(token), &weights[token * topk.k()..], to, share, &mut rest);
                }
                rest.extend((token as u32).to_ne_bytes());
                tokens.write(token, format, &rest, write)
            },
            |from, row, read| received.take(rows_from[from][row], read),
        )
    }
}

impl Tokens<'_> {
    /// Writes a token's row: the token, its scales, and the other parts.
    fn write(
        &self,
        token: usize,
        format: RowFormat,
        rest: &[u8],
        write: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        write(0, self.rows.row(token))?;
        if let Some(scales) = self.scales {
            write(format.scales_at(), scales.row(token))?;
        }
        write(format.rest_at(), rest)
    }
}
