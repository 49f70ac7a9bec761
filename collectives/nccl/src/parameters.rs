//! NCCL's interface to parameters: here these are Symrail's settings, by the names of their variables.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;

use symrail::Settings;
use symrail_core::{CCount, CList, CPointer, CText};
use symrail_transport::env::{VARIABLES, Variable};

use crate::export::nccl;
use crate::guard::{Failure, given, guarded};

/// `ncclParamHandle_t`: the number of a setting, from 1 on.
type Parameter = usize;

thread_local! {
    /// The texts that the last call of `ncclParamGetStr` and of `ncclParamGetParameter` returned.
    static TEXTS: RefCell<[CString; 2]> = RefCell::default();
}

fn find(parameter: Parameter) -> Result<&'static Variable, Failure> {
    let known = parameter.checked_sub(1).and_then(|place| VARIABLES.get(place));
    known.ok_or_else(|| Failure::argument(format!("{parameter:#x} is no handle of a parameter")))
}

/// The number of a parameter by its key.
fn number(key: CText) -> Result<usize, Failure> {
    let key = key.get().ok_or_else(|| Failure::argument("key is a null pointer"))?.to_string_lossy();
    let place = VARIABLES.iter().position(|variable| variable.name == key);
    place.map(|place| place + 1).ok_or_else(|| {
        Failure::argument(format!("there is no parameter {key}: this library's are those of `symrail info --env`"))
    })
}

/// The value that new communicators would have; empty if it is unset.
fn value(of: &Variable) -> Result<String, Failure> {
    let settings = Settings::from_iter(std::env::vars_os()).map_err(symrail::Error::from)?;
    Ok((of.show)(&settings))
}

/// A value as an integer: a number, or a size such as `256M`.
fn integer<T: TryFrom<i128>>(of: &Variable) -> Result<T, Failure> {
    let text = value(of)?;
    let unit = "KMGT".find(|unit| text.ends_with(unit));
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let number = digits.parse::<i128>().ok().and_then(|number| {
        let factor = unit.map_or(1, |place| 1024i128.pow(place as u32 + 1));
        T::try_from(number.checked_mul(factor)?).ok()
    });
    number.ok_or_else(|| {
        let (name, bits) = (of.name, 8 * size_of::<T>());
        Failure::argument(format!("{name} is \"{text}\", and no integer of {bits} bits of that sign"))
    })
}

/// Keeps a text for the caller until this thread's next call of the same kind.
fn kept(which: usize, text: String) -> *const c_char {
    TEXTS.with_borrow_mut(|texts| {
        texts[which] = CString::new(text).unwrap_or_default();
        texts[which].as_ptr()
    })
}

nccl! {
    fn ncclParamBind(to: CPointer<Parameter>, key: CText) leaves (true) {
        given("out", to)?.set(number(key)?);
        Ok(())
    }
}

macro_rules! integers {
    ($($name:ident: $ty:ty;)*) => {$(
        nccl! {
            fn $name(parameter: Parameter, to: CPointer<$ty>) leaves (true) {
                given("out", to)?.set(integer(find(parameter)?)?);
                Ok(())
            }
        }
    )*};
}

integers! {
    ncclParamGetI8: i8;
    ncclParamGetI16: i16;
    ncclParamGetI32: i32;
    ncclParamGetI64: i64;
    ncclParamGetU8: u8;
    ncclParamGetU16: u16;
    ncclParamGetU32: u32;
    ncclParamGetU64: u64;
}

nccl! {
    fn ncclParamGetStr(parameter: Parameter, to: CPointer<*const c_char>) leaves (true) {
        given("out", to)?.set(kept(0, value(find(parameter)?)?));
        Ok(())
    }
}

// The representation is the text, without an end.
nccl! {
    fn ncclParamGet(parameter: Parameter, to: CList<u8>, most: CCount, len: CPointer<c_int>) leaves (true) {
        if to.is_null() {
            return Err(Failure::argument("out is a null pointer"));
        }
        let len = given("len", len)?;
        let text = value(find(parameter)?)?;
        len.set(text.len() as c_int);
        let (bytes, most_bytes) = (text.len(), most.get());
        if most_bytes < bytes as c_int {
            return Err(Failure::argument(format!("the value has {bytes} bytes, and maxLen is {most_bytes}")));
        }
        to.places(most).zip(text.bytes()).for_each(|(place, byte)| place.set(byte));
        Ok(())
    }
}

nccl! {
    fn ncclParamGetParameter(key: CText, to: CPointer<*const c_char>, len: CPointer<c_int>) leaves (true) {
        let (to, len, number) = (given("value", to)?, given("valueLen", len)?, number(key)?);
        let text = value(&VARIABLES[number - 1])?;
        len.set(text.len() as c_int);
        to.set(kept(1, text));
        Ok(())
    }
}

nccl! {
    fn ncclParamGetAllParameterKeys(table: CPointer<*mut *const c_char>, len: CPointer<c_int>) leaves (true) {
        // Texts that stay for ever. An atomic pointer has the form of a pointer.
        static KEYS: OnceLock<Vec<AtomicPtr<c_char>>> = OnceLock::new();
        let text = |variable: &Variable| CString::new(variable.name).unwrap_or_default().into_raw().into();
        let keys = KEYS.get_or_init(|| VARIABLES.iter().map(text).collect());
        let (table, len) = (given("table", table)?, given("tableLen", len)?);
        table.set(keys.as_ptr().cast_mut().cast());
        len.set(keys.len() as c_int);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclParamDumpAll() {
    guarded(|| {
        let settings = Settings::from_iter(std::env::vars_os()).map_err(symrail::Error::from)?;
        for variable in VARIABLES {
            symrail_core::guard::write_line(&format!("{}={}", variable.name, (variable.show)(&settings)));
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn pncclParamDumpAll() {
    ncclParamDumpAll();
}
