#!/bin/bash
# Writes src/bindings.rs from the installed headers (Debian: libibverbs-dev, 44.0 when it was last run).
# It is only needed when the list of types below changes: a build needs neither headers nor libclang.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
header=$(mktemp --suffix .h)
trap 'rm -f "$header"' EXIT
echo '#include <infiniband/verbs.h>' > "$header"
types='ibv_(access_flags|ah_attr|async_event|atomic_cap|comp_channel|context|context_ops|cq|device|device_attr'
types+='|event_type|gid|gid_entry|gid_type|global_route|mr|mtu|node_type|transport_type|pd|port_attr|port_state'
types+='|qp|qp_attr|qp_attr_mask|qp_cap|qp_init_attr|qp_state|qp_type|recv_wr|send_flags|send_wr|sge|srq|srq_attr'
types+='|srq_init_attr|mig_state|wq_state|wq_type|wc|wc_flags|wc_opcode|wc_status|wr_opcode)'
"${BINDGEN:-bindgen}" "$header" --output src/bindings.rs \
  --allowlist-type "$types" --allowlist-var 'IBV_LINK_LAYER_.*' \
  --no-recursive-allowlist --allowlist-type '_compat_ibv_port_attr|__be(16|32|64)|__u(16|32|64)|_ibv_device_ops' \
  --allowlist-type 'ibv_mw|ibv_mw_type|ibv_mw_bind|ibv_mw_bind_info|ibv_ah|ibv_wq|pthread_mutex_t|pthread_cond_t|__pthread_.*' \
  --blocklist-type 'pthread_.*|__pthread.*|__atomic_wide_counter.*' \
  --default-enum-style consts --no-prepend-enum-name --no-doc-comments --with-derive-default --no-layout-tests \
  --merge-extern-blocks --rust-target 1.85 --rust-edition 2024 --use-core \
  --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t};' -- -D_GNU_SOURCE
