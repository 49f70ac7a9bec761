//! Types that the bindings point to and nothing here looks into.
#![allow(missing_docs, non_camel_case_types)]

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    fi_av_set_attr fi_cntr_attr fi_collective_attr fi_eq_attr fi_poll_attr fi_wait_attr
    fi_ops_collective fi_ops_tagged
    fid_av_set fid_cntr fid_eq fid_mc fid_pep fid_poll fid_stx fid_wait
}

/// What a collective does; unused here, but named in the type of a function pointer.
pub type fi_collective_op = u32;
