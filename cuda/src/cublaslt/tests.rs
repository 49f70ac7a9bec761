//! The calls to cuBLASLt, recorded by functions in its place. The library itself is not needed.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use symrail_core::DataType;

use super::functions::{Found, Functions, Handle, NOT_SUPPORTED, Status};
use super::*;

/// A call: its name, its numbers, and the bytes of an attribute.
type Call = (&'static str, Vec<i64>, Vec<u8>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    /// The results of choices and products.
    static ANSWER: RefCell<(Status, c_int)> = const { RefCell::new((0, 1)) };
}

fn note(name: &'static str, numbers: &[i64], bytes: &[u8]) -> i64 {
    CALLS.with_borrow_mut(|calls| {
        calls.push((name, numbers.to_vec(), bytes.to_vec()));
        calls.len() as i64
    })
}

/// Writes a handle: the number of the call that made it.
fn hand(out: *mut Handle, number: i64) -> Status {
    // SAFETY: the caller of the function provides a place for a handle.
    unsafe { out.write(std::ptr::without_provenance_mut(number as usize)) };
    0
}

fn number(handle: Handle) -> i64 {
    handle.addr() as i64
}

unsafe extern "C" fn create(out: *mut Handle) -> Status {
    hand(out, note("preference", &[], &[]))
}
unsafe extern "C" fn destroy(handle: Handle) -> Status {
    note("destroy", &[number(handle)], &[]);
    0
}
unsafe extern "C" fn layout(out: *mut Handle, code: c_int, rows: u64, columns: u64, lead: i64) -> Status {
    hand(out, note("layout", &[code.into(), rows.cast_signed(), columns.cast_signed(), lead], &[]))
}
unsafe extern "C" fn product(out: *mut Handle, compute: c_int, scale: c_int) -> Status {
    hand(out, note("product", &[compute.into(), scale.into()], &[]))
}
unsafe extern "C" fn set(of: Handle, key: c_int, value: *const c_void, bytes: usize) -> Status {
    // SAFETY: the caller provides so many bytes.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
    note("set", &[number(of), key.into()], value);
    0
}
unsafe extern "C" fn choose(
    handle: Handle,
    product: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    preference: Handle,
    wanted: c_int,
    found: *mut Found,
    count: *mut c_int,
) -> Status {
    let numbers = [handle, product, a, b, c, d, preference].map(number);
    note("choose", &[&numbers[..], &[wanted.into()]].concat(), &[]);
    let (status, how_many) = ANSWER.with_borrow(|answer| *answer);
    // SAFETY: the caller provides places for the results.
    unsafe {
        count.write(how_many);
        found.write(Found { algorithm: [7; 8], ..Found::default() });
    }
    status
}
unsafe extern "C" fn multiply(
    handle: Handle,
    product: Handle,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: Handle,
    b: *const c_void,
    b_layout: Handle,
    beta: *const c_void,
    c: *const c_void,
    c_layout: Handle,
    d: *mut c_void,
    d_layout: Handle,
    algorithm: *const Algorithm,
    workspace: *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller passes two 32-bit floats and an algorithm.
    let (alpha, beta, algorithm) = unsafe { (*alpha.cast::<f32>(), *beta.cast::<f32>(), *algorithm) };
    assert_eq!((alpha, beta), (1.0, f32::from(u8::from(c.addr() != d.addr()))));
    let numbers = [handle, product, a_layout, b_layout, c_layout, d_layout, workspace, stream].map(number);
    let places = [a, b, c, d.cast_const()].map(|at| at.addr() as i64);
    note("multiply", &[&numbers[..], &places, &[bytes as i64]].concat(), &[]);
    // Only the choice of `choose` is supported.
    if algorithm == [7; 8] { ANSWER.with_borrow(|answer| answer.0) } else { NOT_SUPPORTED }
}

const FUNCTIONS: Functions = Functions {
    create,
    destroy,
    layout: (layout, destroy),
    product: (product, destroy, set),
    preference: (create, destroy, set),
    choose,
    multiply,
    _library: None,
};

fn linear(numbers: [DataType; 3]) -> Product {
    let aligned = [16, 8, 4];
    Product { rows: 5, inputs: 7, outputs: 3, numbers, by_inputs: false, has_bias: false, aligned, split: false }
}

const PLACES: Places =
    Places { rows: 0x1000, weight: 0x2000, product: 0x3000, onto: 0, bias: 0x4000, scales: [0x50, 0x60] };

/// The calls of one product.
fn calls(it: &Product) -> Vec<Call> {
    calls_by(it, Chosen([7; 8]), &PLACES)
}

fn calls_by(it: &Product, chosen: Chosen, places: &Places) -> Vec<Call> {
    CALLS.with_borrow_mut(Vec::clear);
    let passed = it.attributes(places, 64).unwrap();
    let to = (std::ptr::without_provenance_mut(99), (0x9000, 64));
    // SAFETY: functions of this file, which do not dereference addresses.
    unsafe { FUNCTIONS.multiply(0, std::ptr::without_provenance_mut(1000), (it, &passed), &chosen, places, to) }
        .unwrap();
    CALLS.take()
}

fn attributes(calls: &[Call]) -> Vec<(i64, Vec<u8>)> {
    calls.iter().filter(|call| call.0 == "set").map(|call| (call.1[1], call.2.clone())).collect()
}

fn word(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

#[test]
fn a_linear_layer_is_the_turned_weight_times_the_rows_by_columns() {
    let calls = calls(&linear([DataType::Bfloat16; 3]));
    assert_eq!(calls[0], ("product", vec![68, 0], vec![]));
    assert_eq!(attributes(&calls), [(3, word(1)), (4, word(0))]);
    let layouts: Vec<_> = calls.iter().filter(|call| call.0 == "layout").map(|call| call.1.clone()).collect();
    // The weight is 3 x 7 by rows, so 7 x 3 by columns; the rows are 7 x 5, the product is 3 x 5.
    assert_eq!(layouts, [[14, 7, 3, 7], [14, 7, 5, 7], [14, 3, 5, 3]]);
    let multiplied = calls.iter().find(|call| call.0 == "multiply").unwrap();
    assert_eq!(multiplied.1, [1000, 1, 4, 5, 6, 6, 0x9000, 99, 0x2000, 0x1000, 0x3000, 0x3000, 64]);
    // Every object that was made is destroyed.
    let ended: Vec<_> = calls.iter().filter(|call| call.0 == "destroy").map(|call| call.1[0]).collect();
    assert_eq!(ended.len(), 4);
}

#[test]
fn what_was_chosen_for_other_rows_and_is_not_supported_is_chosen_again() {
    let calls = calls_by(&Product { rows: 1, ..linear([DataType::Float32; 3]) }, Chosen([8; 8]), &PLACES);
    let names: Vec<_> = calls.iter().map(|call| call.0).filter(|name| ["choose", "multiply"].contains(name)).collect();
    assert_eq!(names, ["multiply", "choose", "multiply"]);
}

#[test]
fn a_product_is_added_to_numbers_elsewhere() {
    let places = Places { onto: 0x7000, ..PLACES };
    let calls = calls_by(&linear([DataType::Bfloat16; 3]), Chosen([7; 8]), &places);
    let multiplied = calls.iter().find(|call| call.0 == "multiply").unwrap();
    assert_eq!(multiplied.1[8..12], [0x2000, 0x1000, 0x7000, 0x3000]);
}

#[test]
fn a_weight_by_inputs_is_not_turned() {
    let calls = calls(&Product { by_inputs: true, ..linear([DataType::Float32; 3]) });
    assert_eq!(attributes(&calls)[0], (3, word(0)));
    let weight = calls.iter().find(|call| call.0 == "layout").unwrap();
    assert_eq!(weight.1, [0, 3, 7, 3]);
}

#[test]
fn a_bias_is_added_by_the_product_and_has_its_type() {
    let calls = calls(&Product { has_bias: true, ..linear([DataType::Float16; 3]) });
    let bias = 0x4000u64.to_ne_bytes().to_vec();
    assert_eq!(attributes(&calls)[2..], [(7, word(4)), (8, bias), (26, word(2))]);
}

#[test]
fn short_numbers_have_their_scales_the_weight_first() {
    let calls = calls(&linear([DataType::Float8E5m2, DataType::Float8E4m3, DataType::Bfloat16]));
    let [weight, rows] = [0x60u64, 0x50].map(|at| at.to_ne_bytes().to_vec());
    assert_eq!(attributes(&calls)[2..], [(17, weight), (18, rows)]);
    let types: Vec<_> = calls.iter().filter(|call| call.0 == "layout").map(|call| call.1[0]).collect();
    assert_eq!(types, [28, 29, 14]);
}

#[test]
fn other_numbers_are_refused_by_name() {
    for ty in [DataType::Int8, DataType::Float64] {
        let refused = linear([DataType::Float32, DataType::Float32, ty]).attributes(&PLACES, 64).unwrap_err();
        assert!(!multiplies(ty) && refused.to_string().ends_with(&format!("float8_e5m2, not {ty}")), "{refused}");
    }
}

#[test]
fn the_choice_is_of_one_that_sums_at_once_and_fits_the_addresses() {
    CALLS.with_borrow_mut(Vec::clear);
    ANSWER.set((0, 1));
    let it = linear([DataType::Bfloat16; 3]);
    let handle = std::ptr::without_provenance_mut(1000);
    let passed = it.attributes(&PLACES, 64).unwrap();
    assert_eq!(FUNCTIONS.choose(0, handle, &it, &passed).unwrap(), Chosen([7; 8]));
    let calls = CALLS.take();
    let preference = attributes(&calls)[2..].to_vec();
    let workspace = (1, 64u64.to_ne_bytes().to_vec());
    assert_eq!(preference, [workspace, (3, word(0)), (5, word(8)), (6, word(16)), (7, word(4)), (8, word(4))]);
    let split = Product { split: true, ..it }.attributes(&PLACES, 64).unwrap();
    assert!(split.preference.iter().all(|&(key, _)| key != 3), "sums of sums are refused");
    for answer in [(15, 1), (0, 0)] {
        ANSWER.set(answer);
        let error = FUNCTIONS.choose(3, handle, &it, &passed).unwrap_err().to_string();
        assert!(error.contains("GPU 3") && error.contains("5 rows of 7 x 3"), "{error}");
        assert!(error.contains("CUBLAS_STATUS_NOT_SUPPORTED"), "{error}");
    }
}

#[test]
fn a_machine_without_the_library_says_where_it_was_sought() {
    let folder = PathBuf::from("/nowhere");
    match Functions::load(&[folder]) {
        Ok(_) => println!("SKIPPED: this machine has cuBLASLt"),
        Err(error) => assert!(error.to_string().contains("/nowhere/libcublasLt.so.13"), "{error}"),
    }
}
