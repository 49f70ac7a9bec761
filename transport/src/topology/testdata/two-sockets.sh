#!/bin/sh
# Creates, in the folder $1, the kernel's /sys of a machine. It has two packages of two NUMA nodes of four cores. Each
# node has a PCI switch with a GPU and a NIC, and node 0's other host bridge has eno1.
set -e
cd "$1"

file() { # path text
  mkdir -p "${1%/*}"
  echo "$2" > "$1"
}

file devices/system/cpu/online 0-15
for cpu in $(seq 0 15); do
  package=$((cpu / 8))
  topology=devices/system/cpu/cpu$cpu/topology
  file $topology/physical_package_id $package
  file $topology/core_cpus_list "$cpu"
  file $topology/package_cpus_list $((8 * package))-$((8 * package + 7))
done

mkdir -p bus/pci/devices class/net class/infiniband

pci() { # path below devices, class
  file "devices/$1/class" "$2"
  file "devices/$1/local_cpulist" "$cpus"
  ln -s "../../../devices/$1" "bus/pci/devices/${1##*/}"
}

name() { # class, name, path below devices
  mkdir -p "devices/$3/$1/$2"
  ln -s "../../devices/$3/$1/$2" "class/$1/$2"
}

file devices/system/node/online 0-3
for node in 0 1 2 3; do
  cpus=$((4 * node))-$((4 * node + 3))
  file devices/system/node/node$node/cpulist $cpus
  file devices/system/node/node$node/meminfo "Node $node MemTotal:       268435456 kB"
  # Buses 00 to 04 below node 0, 20 to 24 below node 1 …
  tens=$((2 * node))
  switch=pci0000:${tens}0/0000:${tens}0:01.0/0000:${tens}1:00.0
  pci "${switch%/*}" 0x060400
  pci "$switch" 0x060400
  pci "$switch/0000:${tens}2:00.0" 0x060400
  pci "$switch/0000:${tens}2:01.0" 0x060400
  pci "$switch/0000:${tens}2:00.0/0000:${tens}3:00.0" 0x030200
  nic=$switch/0000:${tens}2:01.0/0000:${tens}4:00.0
  pci "$nic" 0x020700
  # The NICs are numbered in reverse: mlx5_3 belongs to node 0.
  name net ib$((3 - node)) "$nic"
  name infiniband mlx5_$((3 - node)) "$nic"
done

cpus=0-3
pci pci0000:10/0000:10:00.0 0x020000
name net eno1 pci0000:10/0000:10:00.0
