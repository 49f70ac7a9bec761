#!/bin/bash
# In the guest, before the command: the rails.
#   rxe0, rxe1, …  each alone on a dummy interface (10.77.N.1/24): a rail reaches itself, and others do not reach it
#   wire0, wire1   (when the kernel command line says wire=1) on the two ends of a veth pair, 10.78.0.1 and 10.78.0.2:
#                  they reach each other, and their packets cross an interface where tc can delay or drop them
set -e
argument() { sed -n "s/.*\<$1=\([0-9]*\).*/\1/p" /proc/cmdline; }

ip link set lo up
for ((i = 0; i < $(argument count); i++)); do
  ip link add rail$i type dummy
  ip link set rail$i address 02:00:00:00:00:0$((i + 1)) mtu 4200 up
  ip addr add 10.77.$i.1/24 dev rail$i
  rdma link add rxe$i type rxe netdev rail$i
done

[ "$(argument wire)" = 1 ] || exit 0
ip link add end0 type veth peer name end1
for i in 0 1; do
  ip link set end$i address 02:00:00:00:01:0$((i + 1)) mtu 4200
  # Both addresses are this machine's own: accept packets that come from ourselves, and answer ARP per interface.
  for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
    echo "${setting#*=}" > "/proc/sys/net/ipv4/conf/end$i/${setting%=*}"
  done
  ip link set end$i up
  ip addr add 10.78.0.$((i + 1))/32 dev end$i
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# Outgoing packets ask table 100 before the table of local addresses, which would keep them off the wire.
ip rule add pref 10 iif end0 lookup local
ip rule add pref 11 iif end1 lookup local
ip route add 10.78.0.2/32 dev end0 src 10.78.0.1 table 100
ip route add 10.78.0.1/32 dev end1 src 10.78.0.2 table 100
ip rule add pref 20 lookup 100
ip rule add pref 30 lookup local
ip rule del pref 0
rdma link add wire0 type rxe netdev end0
rdma link add wire1 type rxe netdev end1
