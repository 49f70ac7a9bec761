//! High throughput: any number of tokens, through buffers of any size, and who calls learns how many have arrived.
//!
//! A call begins with a header from each rank to each other one: which call it is, of what shape, how many rows go to
//! whom. Who finds that the calls differ returns an error, and so does every rank, before any row was sent. Then rows
//! go in blocks, as many as fit, while blocks of others are read.
//!
//! | file | concept |
//! |---|---|
//! | here | the calls |
//! | `header` | what ranks tell each other before rows are sent |
//! | `transfer` | rows in blocks |
//! | [`received`] | what has arrived, by source and by expert |

mod header;
pub mod received;
mod transfer;

use symrail::Runtime;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, WaitLimit};
use crate::plan::layout::{Layout, TopK};
use crate::plan::rows::{RowFormat, Rows};
use crate::plan::sizes;
use header::{Call, Header};
pub use received::{Handle, Received};
use transfer::Transfer;

/// Bytes of the largest header.
pub(crate) fn header_bytes(ranks: usize) -> usize {
    Header::most_bytes(ranks)
}

/// Buffers for dispatch and combine of any number of tokens. See the [module](self).
pub struct HighThroughput<'rt> {
    headers: Exchange<'rt>,
    rows: Exchange<'rt>,
    limit: WaitLimit,
    /// Why it cannot be used any more.
    broken: Option<String>,
}

/// What a rank dispatches.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// A row for each token.
    pub rows: Rows<'a>,
    /// Scales of each token, if it has any.
    pub scales: Option<Rows<'a>>,
    /// The experts of each token and their weights, if those are to go along.
    pub topk: Option<(TopK<'a>, &'a [f32])>,
}

/// The sums of a combine.
#[derive(Debug, Clone, PartialEq)]
pub struct Combined {
    /// A row for each token.
    pub rows: Vec<u8>,
    /// The weights that have come back for each token, added.
    pub weights: Vec<f32>,
}

/// What a rank gives to a combine.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// A row for each token that has arrived.
    pub rows: Rows<'a>,
    /// The type of their elements.
    pub element: Element,
    /// Weights of each token that has arrived, as many as it has slots.
    pub weights: Option<(&'a [f32], usize)>,
    /// Up to two rows for each of this rank's own tokens, which are added to the sums.
    pub biases: [Option<Rows<'a>>; 2],
}

impl<'rt> HighThroughput<'rt> {
    /// Makes buffers of so many bytes of each rank's heap. Collective.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] and [`symrail::Error::ParametersDiffer`], on every rank; the heap is exhausted.
    pub fn new(rt: &'rt Runtime, bytes: usize, limit: WaitLimit) -> Result<HighThroughput<'rt>> {
        rt.team_world()?.compare("buffers for high throughput", &[("bytes", bytes as u64)])?;
        let ranks = rt.n_pes() as usize;
        let least = sizes::high_throughput(ranks, 1, sizes::LEAST_ROW);
        if bytes < least {
            return Err(Error::BufferTooSmall { what: "high throughput", needed: least, given: bytes });
        }
        let of_headers = Exchange::bytes(ranks, Header::most_bytes(ranks));
        let headers = Exchange::new(rt, Header::most_bytes(ranks))?;
        let rows = Exchange::new(rt, Exchange::largest_block(ranks, bytes - of_headers))?;
        Ok(HighThroughput { headers, rows, limit, broken: None })
    }

    /// Gives the memory back. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self) -> Result<()> {
        self.rows.free()?;
        self.headers.free()
    }

    /// Bytes of each rank's heap that are in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.headers.taken() + self.rows.taken()
    }

    fn ranks(&self) -> usize {
        self.rows.runtime().n_pes() as usize
    }

    fn me(&self) -> usize {
        self.rows.runtime().my_pe() as usize
    }

    /// Sends each token to the ranks that the layout says, and returns what has arrived: by source, in the sources' order.
    /// Collective.
    ///
    /// # Errors
    /// Before anything is sent: arguments that do not go together, a row that has no room in a block. Before rows are
    /// sent: [`Error::Differ`]. After that: [`Error::Late`] and what the runtime says; the buffers are
    /// [broken](Error::Broken) then.
    pub fn dispatch(&mut self, tokens: &Tokens<'_>, layout: &Layout) -> Result<(Received, Handle)> {
        let format = self.format_of(tokens, layout)?;
        if let Some((topk, _)) = tokens.topk {
            topk.check(layout.experts())?;
        }
        let header = Header::new(Call::Dispatch, format, layout.per_rank(), layout.per_expert());
        let headers = self.meet(&header)?;
        let handle = Handle::new(layout.clone(), &headers, self.me());
        let received = self.send_tokens(tokens, format, &handle)?;
        let per_expert = header::sum_of_experts(&headers, layout.share());
        let handle = Handle { source_tokens: received.numbers.clone(), ..handle };
        Ok((Received { per_expert, ..received }, handle))
    }

    /// As [`HighThroughput::dispatch`] of other rows on the ways of an earlier one. Collective.
    ///
    /// # Errors
    /// As for [`HighThroughput::dispatch`].
    pub fn dispatch_again(&mut self, tokens: &Tokens<'_>, handle: &Handle) -> Result<Received> {
        let format = self.format_of(tokens, &handle.layout)?;
        let header = Header::new(Call::Again, format, handle.layout.per_rank(), handle.layout.per_expert());
        let headers = self.meet(&header)?;
        self.must_expect(&headers, &handle.received)?;
        self.send_tokens(tokens, format, handle)
    }

    /// Sends a row for each token that has come back to where it came from, and returns the sums for this rank's own
    /// tokens: of the rows from all ranks in their order, and then the biases, added in FP32. Collective.
    ///
    /// # Errors
    /// As for [`HighThroughput::dispatch`].
    pub fn combine(&mut self, parts: &Parts<'_>, handle: &Handle) -> Result<Combined> {
        let (rows, element) = (parts.rows, parts.element);
        self.must_be_for_these(&handle.layout)?;
        rows.must_be("rows to combine", handle.rows())?;
        if !rows.bytes().is_multiple_of(element.bytes()) {
            let wanted = format!("a multiple of {} bytes", element.bytes());
            return Err(Error::argument("bytes of a row", rows.bytes(), wanted));
        }
        let k = parts.weights.map_or(0, |(_, k)| k);
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
        let format = RowFormat { token: rows.bytes(), scales: 0, indices: 0, weights: k, number: 0 };
        self.must_fit(format)?;
        let header = Header::new(Call::Combine, format, &handle.received, &[]);
        let headers = self.meet(&header)?;
        self.must_expect(&headers, handle.layout.per_rank())?;
        self.add_up(parts, format, handle)
    }

    /// The format of rows for these tokens, all of which are checked.
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
        let format = RowFormat { token: rows.bytes(), scales, indices: k, weights: k, number: 4 };
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

    /// Refuses rows that have no room in a block.
    fn must_fit(&self, format: RowFormat) -> Result<()> {
        if let Some(why) = &self.broken {
            return Err(Error::Broken { why: why.clone() });
        }
        if format.bytes() <= self.rows.block() {
            return Ok(());
        }
        let needed = sizes::high_throughput(self.ranks(), 1, format.bytes());
        Err(Error::BufferTooSmall { what: "high throughput", needed, given: self.bytes() })
    }

    /// Exchanges headers, and compares them.
    fn meet(&mut self, header: &Header) -> Result<Vec<Header>> {
        let headers = header::exchange(&mut self.headers, header, self.limit);
        let headers = self.noting(headers)?;
        header::compare(&headers, self.me())?;
        Ok(headers)
    }

    /// Refuses peers that are about to send another number of rows than this rank expects.
    fn must_expect(&self, headers: &[Header], expected: &[u32]) -> Result<()> {
        let me = self.me();
        for (other, (header, &here)) in headers.iter().zip(expected).enumerate() {
            let there = header.per_rank[me];
            if there != here {
                let (here, there) = (here.into(), there.into());
                let what = "rows from one rank to the other, by the handles of both";
                return Err(Error::Differ { what, me: me as u32, here, other: other as u32, there });
            }
        }
        Ok(())
    }

    /// Remembers that a call has failed in its midst.
    fn noting<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.broken = Some(error.to_string());
        }
        result
    }

    fn send_tokens(&mut self, tokens: &Tokens<'_>, format: RowFormat, handle: &Handle) -> Result<Received> {
        let received = Received::new(format, handle.rows());
        let mut received = self.noting(received)?;
        let share = handle.layout.share();
        let transfer = Transfer { exchange: &mut self.rows, format, limit: self.limit, what: "dispatch" };
        let lists: Vec<Vec<u32>> = (0..handle.layout.ranks()).map(|rank| handle.layout.tokens_for(rank)).collect();
        let sent = transfer.run(
            (handle.layout.per_rank(), &handle.received),
            |to, row, write| {
                let token = lists[to][row] as usize;
                write(0, tokens.rows.row(token))?;
                if let Some(scales) = tokens.scales {
                    write(format.scales_at(), scales.row(token))?;
                }
                let mut rest = Vec::with_capacity(format.rest());
                if let Some((topk, weights)) = tokens.topk {
                    received::slots(topk.of(token), &weights[token * topk.k()..], to, share, &mut rest);
                }
                rest.extend((token as u32).to_ne_bytes());
                write(format.rest_at(), &rest)
            },
            |from, row, read| received.take(handle.first_row(from) + row, read),
        );
        self.noting(sent)?;
        Ok(received)
    }

    fn add_up(&mut self, parts: &Parts<'_>, format: RowFormat, handle: &Handle) -> Result<Combined> {
        let (k, layout) = (format.weights, &handle.layout);
        let back: Vec<usize> = received::first_rows(layout.per_rank());
        let all: usize = layout.per_rank().iter().map(|&rows| rows as usize).sum();
        let mut rows = vec![0; all * format.token];
        let mut weights = vec![0; all * 4 * k];
        let transfer = Transfer { exchange: &mut self.rows, format, limit: self.limit, what: "combine" };
        let sent = transfer.run(
            (&handle.received, layout.per_rank()),
            |to, row, write| {
                let row = handle.first_row(to) + row;
                write(0, parts.rows.row(row))?;
                let rest: Vec<u8> = parts
                    .weights
                    .iter()
                    .flat_map(|(all, k)| &all[row * k..][..*k])
                    .flat_map(|w| w.to_ne_bytes())
                    .collect();
                write(format.rest_at(), &rest)
            },
            |from, row, read| {
                let row = back[from] + row;
                read(0, &mut rows[row * format.token..][..format.token])?;
                read(format.rest_at(), &mut weights[row * 4 * k..][..4 * k])
            },
        );
        self.noting(sent)?;
        Ok(sum(&rows, &weights, parts, format, handle))
    }
}

/// The sums of what has come back: by rank, and then the biases.
fn sum(rows: &[u8], weights: &[u8], parts: &Parts<'_>, format: RowFormat, handle: &Handle) -> Combined {
    let (element, layout, k) = (parts.element, &handle.layout, format.weights);
    let mut next = received::first_rows(layout.per_rank());
    let mut combined = Combined { rows: Vec::with_capacity(layout.tokens() * format.token), weights: Vec::new() };
    let mut sums = vec![0.0; format.token / element.bytes()];
    for (token, gets) in layout.in_rank().chunks_exact(layout.ranks()).enumerate() {
        sums.fill(0.0);
        let mut of_slots = vec![0.0; k];
        for (next, _) in next.iter_mut().zip(gets).filter(|(_, gets)| **gets) {
            element.add(&mut sums, &rows[*next * format.token..][..format.token], None);
            Element::F32.add(&mut of_slots, &weights[*next * 4 * k..][..4 * k], None);
            *next += 1;
        }
        for bias in parts.biases.iter().flatten() {
            element.add(&mut sums, bias.row(token), None);
        }
        element.round(&sums, &mut combined.rows);
        combined.weights.extend(of_slots);
    }
    combined
}
