//! The comparison of what PEs pass, before any data moves. Every call of a communicator that compares begins with it,
//! so a PE in another call, or one whose call was refused, is known to all at once.

use std::borrow::Cow;
use std::sync::PoisonError;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use symrail::with_timeout;

use super::Collectives;
use crate::errors::{Kind, raise, raise_of};
use crate::interrupt::waiting;

/// The most parameters of a call.
const MOST: usize = 9;
/// Bytes of a text that PEs send to each other when they differ.
const TEXT: usize = 256;

/// A parameter: its name, the number that PEs compare, and its text for errors.
pub struct Parameter {
    what: &'static str,
    word: u64,
    text: Cow<'static, str>,
}

impl Parameter {
    /// A number.
    pub fn number(what: &'static str, word: u64) -> Parameter {
        Parameter { what, word, text: word.to_string().into() }
    }

    /// A name.
    pub fn name(what: &'static str, name: impl Into<Cow<'static, str>>) -> Parameter {
        let text = name.into();
        Parameter { what, word: hash(&text), text }
    }

    /// Content that is too long for errors, and a text in its place.
    pub fn content(what: &'static str, content: &str, text: String) -> Parameter {
        Parameter { what, word: hash(content), text: text.into() }
    }
}

/// FNV-1a, which has the same result on all PEs, whatever compiler built them.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Where PEs differ.
pub enum Difference {
    /// A PE was refused its call, and the reason.
    Refused { pe: u32, why: String },
    /// A PE is in another call.
    Call { pe: u32, theirs: String },
    /// A PE passes another value.
    Value { pe: u32, what: &'static str, mine: String, theirs: String },
}

impl Difference {
    fn raise(&self, call: &str) -> PyErr {
        let (pe, why) = match self {
            Difference::Refused { pe, why } => (*pe, format!("{call}: PE {pe} was refused its call: {why}")),
            Difference::Call { pe, theirs } => (*pe, format!("PE {pe} calls {theirs}, and this one {call}")),
            Difference::Value { pe, what, mine, theirs } => {
                (*pe, format!("{call}: PE {pe} passes another {what} than this one ({theirs} and {mine})"))
            }
        };
        raise_of(Kind::Differ, &format!("{why}; nothing was sent"), pe)
    }
}

impl Collectives {
    /// Compares a call's parameters among all PEs, or tells them that this PE's call was refused. Collective over the
    /// team.
    ///
    /// # Errors
    /// This PE's own refusal; DifferError if another PE is in another call, passes another value or was refused;
    /// TimeoutError after `SYMRAIL_TIMEOUT_S`, after which the communicator cannot be used any more.
    pub(super) fn agree<T>(
        &self,
        py: Python<'_>,
        call: &str,
        mine: PyResult<T>,
        parameters: impl FnOnce(&T) -> Vec<Parameter>,
    ) -> PyResult<T> {
        let (passed, refusal) = match &mine {
            Ok(value) => (parameters(value), None),
            Err(error) => (Vec::new(), Some(error.value(py).to_string())),
        };
        let found = self.difference(py, call, &passed, refusal)?;
        mine.and_then(|value| found.map_or(Ok(value), |difference| Err(difference.raise(call))))
    }

    /// Where the PEs differ; all of them find a difference, or none. Collective over the team.
    pub(super) fn difference(
        &self,
        py: Python<'_>,
        call: &str,
        passed: &[Parameter],
        refusal: Option<String>,
    ) -> PyResult<Option<Difference>> {
        debug_assert!(passed.len() <= MOST);
        let mut own = [0; 2 + MOST];
        (own[0], own[1]) = (u64::from(refusal.is_some()), hash(call));
        passed.iter().zip(&mut own[2..]).for_each(|(parameter, word)| *word = parameter.word);
        let all = self.gather(py, &own)?;
        let of = |place: usize| all.iter().map(move |words| words[place]);
        let refused = of(0).any(|refused| refused != 0);
        let differs = |&place: &usize| of(place).any(|word| word != all[0][place]);
        let Some(place) = (if refused { Some(0) } else { (1..own.len()).find(differs) }) else { return Ok(None) };
        // Rare: now PEs also send the words' meaning.
        let own_text = match place {
            0 => refusal.unwrap_or_default(),
            1 => call.to_owned(),
            _ => passed.get(place - 2).map(|parameter| parameter.text.to_string()).unwrap_or_default(),
        };
        let texts = self.gather(py, &to_words(&own_text))?;
        let me = self.team.group().me() as usize;
        let other = match place {
            0 => of(0).position(|refused| refused != 0),
            _ => of(place).position(|word| word != own[place]),
        };
        let other = other.unwrap_or(me);
        let (pe, theirs) = (self.team.group().pe(other as u32), from_words(&texts[other]));
        Ok(Some(match place {
            0 => Difference::Refused { pe, why: theirs },
            1 => Difference::Call { pe, theirs },
            _ => {
                let what = passed.get(place - 2).map_or("parameter", |parameter| parameter.what);
                Difference::Value { pe, what, mine: own_text, theirs }
            }
        }))
    }

    /// The words of all PEs, within the time limit. Collective over the team.
    fn gather(&self, py: Python<'_>, own: &[u64]) -> PyResult<Vec<Vec<u64>>> {
        let team = &self.team;
        team.job.running()?;
        let lost = || self.lost.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &*lost() {
            let why = format!("this communicator cannot be used any more: an earlier call failed with: {why}");
            return Err(raise(Kind::State, &why));
        }
        let limit = team.job.runtime().timeout();
        let all = waiting(py, None, || with_timeout(limit, || team.gather(own)))
            // What the others send later would be taken for a part of the next call.
            .inspect_err(|error| *lost() = Some(error.value(py).to_string()))?;
        Ok(all.chunks(own.len()).map(<[u64]>::to_vec).collect())
    }

    /// Compares all sends with all receives. Collective over the team, whose PEs are all in this call.
    pub(super) fn agree_on_parts(&self, py: Python<'_>, from: &[u64], to: &[u64]) -> PyResult<()> {
        let (n, me) = (self.n(), self.team.group().me() as usize);
        let all = self.gather(py, &[from, to].concat())?;
        // All pairs on all ranks: a rank whose own parts match must not begin either.
        for from in 0..n {
            for (to, theirs) in all.iter().enumerate() {
                let (sent, expected) = (all[from][to], theirs[n + from]);
                if sent != expected {
                    let pe = self.team.group().pe(if from == me { to } else { from } as u32);
                    let why = format!("rank {from} sends {sent} elements to rank {to}, which expects {expected}");
                    return Err(raise_of(Kind::Differ, &format!("{why}; nothing was sent"), pe));
                }
            }
        }
        Ok(())
    }
}

/// A text of up to [`TEXT`] bytes as words: its end is cut off, or filled with zeros.
fn to_words(text: &str) -> Vec<u64> {
    let mut bytes = [0; TEXT];
    let end = (0..=text.len().min(TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))).collect()
}

fn from_words(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
