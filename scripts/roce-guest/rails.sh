#!/bin/bash
# In the guest, before the command: the rails.
#   rxe0, rxe1, …  each alone on a dummy interface (10.77.N.1/24): a rail reaches itself, and others do not reach it
#   wire0 … wire3  (when the kernel command line says wire=1) on end0 … end3, 10.78.0.1 to 10.78.0.4, which a switch
#                  connects: wire0 and wire1 reach each other, and so do wire2 and wire3; their packets cross an
#                  interface where tc can delay or drop them. To pull out end2's cable: ip link set jack2 down
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
ip link add switch mtu 4200 type bridge mcast_snooping 0
ip link set switch up
for i in 0 1 2 3; do
  ip link add end$i mtu 4200 type veth peer name jack$i mtu 4200
  ip link set end$i address 02:00:00:00:01:0$((i + 1))
  # All addresses are this machine's own: accept packets from this machine, and answer ARP per interface.
  for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
    echo "${setting#*=}" > "/proc/sys/net/ipv4/conf/end$i/${setting%=*}"
  done
  ip link set jack$i master switch up
  ip link set end$i up
  ip addr add 10.78.0.$((i + 1))/32 dev end$i
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# Outgoing packets use table 100 before the table of local addresses, which would keep them off the wire.
for i in 0 1 2 3; do
  ip rule add pref 1$i iif end$i lookup local
  ip route add 10.78.0.$(((i ^ 1) + 1))/32 dev end$i src 10.78.0.$((i + 1)) table 100
done
ip rule add pref 20 lookup 100
ip rule add pref 30 lookup local
ip rule del pref 0
for i in 0 1 2 3; do rdma link add wire$i type rxe netdev end$i; done
