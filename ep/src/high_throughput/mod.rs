//! High throughput: any number of tokens, through buffers of any size. The caller learns how many have arrived.
//!
//! A call begins with a header from each rank to each other one: the kind of the call, its shape, and the number of
//! rows for each rank. If calls differ, every rank returns an error before any row is sent. Then the ranks send rows in
//! blocks, each with as many rows as fit, while they read the blocks of others.
//!
//! A row crosses between hosts once for each host. A token goes to one rank of each host that has some of its experts,
//! and that rank forwards it to the others there. Each host first adds a token's returning rows, and the sum crosses in
//! FP32. Where no two ranks share a host, rows cross as they are.
//!
//! | file | concept |
//! |---|---|
//! | here | the calls and their checks |
//! | `header` | headers that ranks exchange before they send rows |
//! | `routes` | the number of rows from each rank to each other one, between hosts and within one |
//! | `dispatch`, `combine` | the contents of the rows |
//! | `transfer` | rows in blocks |
//! | [`received`] | the rows that have arrived, by source and by expert |

mod combine;
mod dispatch;
mod header;
pub mod received;
mod routes;
mod transfer;

use std::time::Instant;

use symrail::Runtime;
use symrail::rounds::{self, Poison};
use symrail_core::DataType;

use crate::element::{must_be_summed, types};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, WaitLimit, beside};
use crate::plan::hosts::Hosts;
use crate::plan::layout::{Layout, TopK};
use crate::plan::rows::{RowFormat, Rows};
use crate::plan::sizes;
use crate::statistics::Statistics;
use header::{Call, Header};
pub use received::{Handle, Received};

/// Bytes of the largest header.
pub(crate) fn header_bytes(ranks: usize) -> usize {
    Header::most_bytes(ranks)
}

/// Buffers for dispatch and combine of any number of tokens. See the [module](self).
pub struct HighThroughput {
    headers: Exchange,
    rows: Exchange,
    hosts: Hosts,
    statistics: Statistics,
    limit: WaitLimit,
    poison: Poison,
}

/// The input of a dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// A row for each token.
    pub rows: Rows<'a>,
    /// Scales of each token, if it has any.
    pub scales: Option<Rows<'a>>,
    /// The experts of each token and their weights, if they are to be sent.
    pub topk: Option<(TopK<'a>, &'a [f32])>,
}

impl Tokens<'_> {
    fn types(&self) -> u32 {
        types(self.rows.element(), self.scales.and_then(|scales| scales.element()))
    }
}

/// The result of a combine.
#[derive(Debug, Clone, PartialEq)]
pub struct Combined {
    /// A row for each token.
    pub rows: Vec<u8>,
    /// For each token, the sums of the weights that have returned.
    pub weights: Vec<f32>,
}

/// The input of a combine.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// A row for each token that has arrived.
    pub rows: Rows<'a>,
    /// The type of their elements.
    pub element: DataType,
    /// Weights of each token that has arrived, as many as it has slots.
    pub weights: Option<(&'a [f32], usize)>,
    /// Up to two rows for each of this rank's own tokens, to be added to the sums.
    pub biases: [Option<Rows<'a>>; 2],
}

impl HighThroughput {
    /// Makes buffers of `bytes` bytes in each rank's heap. Collective.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] and [`symrail::Error::ParametersDiffer`], on every rank; an exhausted heap.
    pub fn new(rt: &Runtime, bytes: usize, limit: WaitLimit) -> Result<HighThroughput> {
        rt.team_world()?.compare("buffers for high throughput", &[("bytes", bytes as u64)])?;
        let ranks = rt.n_pes() as usize;
        let least = sizes::high_throughput(ranks, 1, sizes::LEAST_ROW);
        if bytes < least {
            return Err(Error::BufferTooSmall { what: "high throughput", needed: least, given: bytes });
        }
        let of_headers = Exchange::bytes(ranks, Header::most_bytes(ranks));
        let headers = Exchange::new(rt, Header::most_bytes(ranks))?;
        let rows = Exchange::new(rt, Exchange::largest_block(ranks, bytes - of_headers));
        let (headers, rows) = beside(headers, rows, Exchange::free)?;
        let hosts = Hosts::of_job(rt);
        Ok(HighThroughput { headers, rows, hosts, statistics: Statistics::default(), limit, poison: Poison::default() })
    }

    /// Frees the memory. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        self.rows.free()?;
        self.headers.free()
    }

    /// Bytes of each rank's heap that are in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.headers.taken() + self.rows.taken()
    }

    /// Statistics of the last call.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn ranks(&self) -> usize {
        self.rows.runtime().n_pes() as usize
    }

    fn me(&self) -> usize {
        self.rows.runtime().my_pe() as usize
    }

    /// Sends each token to the ranks that the layout names, and returns the rows that have arrived, ordered by source
    /// and within a source by token. Collective.
    ///
    /// # Errors
    /// - Before anything is sent: arguments that do not agree; a row that does not fit in a block.
    ///
    /// - Before rows are sent: [`ParametersDiffer`](symrail::Error::ParametersDiffer), [`Error::TypesDiffer`].
    ///
    /// - After that: [`Error::Round`] and errors of the runtime. The buffers cannot be used any more then. A rank
    ///   that waits for forwarded rows waits a quarter longer: the forwarding rank gives up first and reports the ranks
    ///   that it has waited for.
    pub fn dispatch(&mut self, tokens: &Tokens<'_>, layout: &Layout) -> Result<(Received, Handle)> {
        let format = self.format_of(tokens, layout)?;
        if let Some((topk, _)) = tokens.topk {
            topk.check(layout.experts())?;
        }
        let headers = self.begin("dispatch", Call::Dispatch, (format, tokens.types()), 0, layout)?;
        let mut handle = Handle::new(layout.clone(), &headers, &self.hosts, self.me());
        let (received, masks) = self.send_tokens(tokens, format, &handle)?;
        let per_expert = header::sum_of_experts(&headers, layout.share());
        self.statistics.per_expert.clone_from(&per_expert);
        handle.source_tokens.clone_from(&received.numbers);
        handle.masks = masks;
        Ok((Received { per_expert, ..received }, handle))
    }

    /// Like [`HighThroughput::dispatch`], for other rows on the routes of an earlier dispatch. Collective.
    ///
    /// # Errors
    /// As for [`HighThroughput::dispatch`].
    pub fn dispatch_again(&mut self, tokens: &Tokens<'_>, handle: &Handle) -> Result<Received> {
        let format = self.format_of(tokens, &handle.layout)?;
        self.begin("dispatch by a handle", Call::Again, (format, tokens.types()), handle.routes, &handle.layout)?;
        Ok(self.send_tokens(tokens, format, handle)?.0)
    }

    /// Sends a row for each received token back to its source, and returns the sums for this rank's own tokens. The
    /// sums are formed in FP32: within each host in the order of its ranks, then in the order of the hosts, then the
    /// biases. Collective.
    ///
    /// # Errors
    /// As for [`HighThroughput::dispatch`].
    pub fn combine(&mut self, parts: &Parts<'_>, handle: &Handle) -> Result<Combined> {
        let (rows, element) = (parts.rows, parts.element);
        self.must_be_for_these(&handle.layout)?;
        rows.must_be("rows to combine", handle.rows())?;
        must_be_summed(element)?;
        if !rows.bytes().is_multiple_of(element.size()) {
            let wanted = format!("a multiple of {} bytes", element.size());
            return Err(Error::argument("bytes of a row", rows.bytes(), wanted));
        }
        if let Some((weights, k)) = parts.weights
            && weights.len() != k * handle.rows()
        {
            return Err(Error::argument("weights to combine", weights.len(), k * handle.rows()));
        }
        for bias in parts.biases.iter().flatten() {
            bias.must_be("bias", handle.layout.tokens())?;
            if bias.bytes() != rows.bytes() {
                return Err(Error::argument("bytes of a bias", bias.bytes(), rows.bytes()));
            }
        }
        let [within, between] = combine::formats(parts, &self.hosts);
        self.must_fit(within)?;
        self.must_fit(between)?;
        let since = Instant::now();
        self.statistics = Statistics::of("combine");
        let per_host = vec![0; self.hosts.count()];
        let header = Header::new(
            Call::Combine,
            (within, types(Some(element), None)),
            handle.routes,
            &handle.received,
            &per_host,
            &[],
        );
        self.exchange_headers(&header, since)?;
        self.add_up(parts, [within, between], handle)
    }

    /// Checks these tokens and returns the format of their rows.
    fn format_of(&self, tokens: &Tokens<'_>, layout: &Layout) -> Result<RowFormat> {
        let rows = tokens.rows;
        self.must_be_for_these(layout)?;
        rows.must_be("tokens", layout.tokens())?;
        if let Some(scales) = tokens.scales {
            scales.must_be("scales", rows.count())?;
        }
        let k = match tokens.topk {
            None => 0,
            Some((topk, weights)) if topk.tokens() == rows.count() && weights.len() == rows.count() * topk.k() => {
                topk.k()
            }
            Some((topk, weights)) => {
                let found = format!("indices of {} tokens, {} weights", topk.tokens(), weights.len());
                return Err(Error::argument("top-k slots", found, format!("both for {} tokens", rows.count())));
            }
        };
        let scales = tokens.scales.map_or(0, |scales| scales.bytes());
        let format = RowFormat { token: rows.bytes(), scales, indices: k, weights: k, number: 4, mask: 8 };
        self.must_fit(format)?;
        Ok(format)
    }

    /// Refuses a layout for another number of ranks.
    fn must_be_for_these(&self, layout: &Layout) -> Result<()> {
        if layout.ranks() == self.ranks() {
            return Ok(());
        }
        Err(Error::argument("ranks of the layout", layout.ranks(), self.ranks()))
    }

    /// Refuses rows that do not fit in a block.
    fn must_fit(&self, format: RowFormat) -> Result<()> {
        self.poison.check(self.me() as u32, "the buffers")?;
        if format.bytes() <= self.rows.block() {
            return Ok(());
        }
        let needed = sizes::high_throughput(self.ranks(), 1, format.bytes());
        Err(Error::BufferTooSmall { what: "high throughput", needed, given: self.bytes() })
    }

    /// Begins a dispatch, and exchanges headers with all others.
    fn begin(
        &mut self,
        what: &'static str,
        call: Call,
        format: (RowFormat, u32),
        routes: u32,
        layout: &Layout,
    ) -> Result<Vec<Header>> {
        let since = Instant::now();
        self.statistics = Statistics::of(what);
        let of_host = |host| layout.tokens_for_any(self.hosts.members(host)).len() as u32;
        let per_host: Vec<u32> = (0..self.hosts.count()).map(of_host).collect();
        let header = Header::new(call, format, routes, layout.per_rank(), &per_host, layout.per_expert());
        self.exchange_headers(&header, since)
    }

    /// Exchanges and compares headers.
    fn exchange_headers(&mut self, header: &Header, since: Instant) -> Result<Vec<Header>> {
        let headers = header::exchange(&mut self.headers, header, self.limit);
        let headers = self.poison_on_err(headers)?;
        header::compare(&headers, self.me())?;
        let me = self.me();
        self.statistics.to_ranks.clone_from(&header.per_rank);
        self.statistics.from_ranks = headers.iter().map(|header| header.per_rank[me]).collect();
        self.statistics.phase(self.rows.runtime(), "headers", since);
        Ok(headers)
    }

    /// The limit for forwarded rows. It is longer, so that the forwarding rank gives up first and reports the ranks
    /// that it has waited for.
    fn limit_of_forwarded(&self) -> WaitLimit {
        let time = self.limit.time;
        WaitLimit { time: if self.hosts.count() > 1 { time + time / 4 } else { time } }
    }

    /// Refuses later calls if a call has failed after its start, and notifies the others of the late ranks.
    fn poison_on_err<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Round(rounds::Error::TimedOut { late, seconds, .. })) = &result {
            self.headers.give_up(late, *seconds);
            self.rows.give_up(late, *seconds);
        }
        self.poison.poison_on_err(result)
    }
}
