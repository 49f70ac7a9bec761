//! Rails of ibverbs, in one program, which scripts/roce-guest/test.sh also runs in a guest.

mod verbs_support;

mod verbs_device;
mod verbs_endpoint;
mod verbs_faults;
mod verbs_rail;
