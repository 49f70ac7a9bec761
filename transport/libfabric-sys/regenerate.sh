#!/bin/sh
# Regenerates src/bindings.rs from libfabric's headers. It is only needed to bind more of the API. The result is
# committed, so a build needs neither the headers nor libclang.
#
# It needs bindgen (0.73), libclang, and the headers of libfabric 1.17, whose structs are those of the symbol
# versions that src/load.rs pins. Headers of a later version would give later structs: do not use them.
#
# usage: [BINDGEN=bindgen] [INCLUDE=/usr/include] ./regenerate.sh
set -eu
cd "$(dirname "$0")"
include=${INCLUDE:-/usr/include}
minor=$(sed -n 's/^#define FI_MINOR_VERSION *//p' "$include/rdma/fabric.h")
[ "$minor" = 17 ] || { echo "$include/rdma holds libfabric 1.$minor, not 1.17" >&2; exit 1; }

header=$(mktemp --suffix .h)
trap 'rm -f "$header" src/bindings.tmp' EXIT
for name in fabric fi_domain fi_endpoint fi_rma fi_atomic fi_cm fi_eq fi_errno; do
    echo "#include <rdma/$name.h>" >>"$header"
done

"${BINDGEN:-bindgen}" "$header" --output src/bindings.tmp --rust-target 1.85 --rust-edition 2024 --use-core \
    --disable-header-comment --no-doc-comments --no-layout-tests --no-derive-debug --default-enum-style consts --no-prepend-enum-name \
    --allowlist-type 'fi_info|fi_fabric_attr|fi_fid_nic|fid_nic|fi_av_attr|fi_cq_attr|fi_cq_data_entry|fi_cq_err_entry' \
    --allowlist-type 'fi_mr_attr|fi_msg|fi_msg_rma|fi_msg_atomic|fi_ioc|fi_rma_iov|fi_rma_ioc|fi_atomic_attr|fi_context2?' \
    --allowlist-type 'fid_(fabric|domain|ep|av|cq|mr)|fi_(wait_obj|cq_format|datatype|op|type|hmem_iface)' \
    --allowlist-type 'fi_(ep_type|av_type|progress|threading|resource_mgmt)' \
    --allowlist-var 'FI_(MSG|RMA|ATOMIC|READ|WRITE|RECV|SEND|TRANSMIT|REMOTE_READ|REMOTE_WRITE|MULTI_RECV|REMOTE_CQ_DATA)' \
    --allowlist-var 'FI_(MORE|COMPLETION|SELECTIVE_COMPLETION|INJECT|FENCE|RMA_EVENT|LOCAL_COMM|REMOTE_COMM|HMEM)' \
    --allowlist-var 'FI_(INJECT|TRANSMIT|DELIVERY|COMMIT)_COMPLETE|FI_SOURCE|FI_FETCH_ATOMIC|FI_COMPARE_ATOMIC' \
    --allowlist-var 'FI_CONTEXT2?|FI_MR_(LOCAL|RAW|VIRT_ADDR|ALLOCATED|PROV_KEY|MMU_NOTIFY|RMA_EVENT|ENDPOINT|HMEM)' \
    --allowlist-var 'FI_ORDER_.*|FI_E[A-UW-Z0-9][A-Z0-9]+|FI_SOCKADDR(_IN6?)?|FI_ADDR_.*|FI_FORMAT_UNSPEC' \
    --allowlist-var 'FI_(ENABLE|GETWAIT|OPT_ENDPOINT|OPT_MIN_MULTI_RECV)' \
    --blocklist-type 'fi_(collective|cntr|eq|poll|tagged|deferred|trigger).*|fi_wait_attr|sockaddr|iovec' \
    --blocklist-type 'fi_ops_(tagged|collective|mr_cache|eq|cntr|wait|poll|av_set)|fid_(wait|poll|eq|cntr|stx|mc|av_set|pep)' \
    --blocklist-type 'fi_(av_set_attr|av_set|mr_cache).*|__.*' \
    --raw-line 'use crate::opaque::*;' --raw-line 'use core::ffi::*;' --raw-line 'use libc::iovec;' \
    "$@"

# Macros and anonymous enums have no type of their own. Flags become u64, like their fields and arguments, error numbers
# become i32, and all others u32.
sed -E -e 's/^pub const (FI_E[A-Z0-9]+): [a-z0-9_]+/pub const \1: i32/' \
    -e 's/^pub const (FI_[A-Z0-9_]+): u32/pub const \1: u64/' \
    -e 's/: _bindgen_ty_[0-9]+ =/: u32 =/' -e '/^pub type _bindgen_ty_/d' \
    -e 's/::core::option:://g' -e 's/::core::ffi::(c_)/\1/g' \
    src/bindings.tmp >src/bindings.rs
rustfmt --edition 2024 --config-path ../../rustfmt.toml src/bindings.rs
