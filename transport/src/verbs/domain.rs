//! An opened device and its protection domain, and queries to them.

use std::io;
use std::sync::Arc;

use sys::Verbs;
use verbs_sys as sys;

use super::gid::{Gid, GidType};
use crate::error::{Error, Fault, Result};

/// An opened device. Objects that are made from it keep it open.
pub(super) struct Context {
    pub verbs: Arc<Verbs>,
    pub raw: *mut sys::ibv_context,
    /// The device's name.
    pub device: String,
}

// SAFETY: libibverbs may be called from any thread; the context is only an argument to its functions.
unsafe impl Send for Context {}
// SAFETY: as above; nothing in it changes after opening.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened in `open`. Every object made from it holds an `Arc` of it, so all are gone.
        unsafe { (self.verbs.ibv_close_device)(self.raw) };
    }
}

/// The error of a call that just set `errno`.
pub(super) fn failed(call: &'static str, rail: &str) -> Error {
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    refused(call, rail, code, "")
}

/// The error of a call that returned `code`, with a remedy if there is one.
pub(super) fn refused(call: &'static str, rail: &str, code: i32, remedy: &str) -> Error {
    Error::Fabric { call, rail: rail.into(), fault: errno_fault(code, remedy) }
}

/// An `errno` as a fault.
pub(super) fn errno_fault(code: i32, remedy: &str) -> Fault {
    let code = code.abs();
    let separator = if remedy.is_empty() { "" } else { ": " };
    Fault { code, text: format!("{}{separator}{remedy}", io::Error::from_raw_os_error(code)), retryable: false }
}

impl Context {
    /// Opens the device with that name; `None` when there is none.
    pub fn open(verbs: &Arc<Verbs>, device: &str) -> Result<Option<Self>> {
        let mut found = None;
        with_devices(verbs, |raw, name| {
            if found.is_none() && name == device {
                // SAFETY: `raw` is in a list that is not freed yet.
                let context = unsafe { (verbs.ibv_open_device)(raw) };
                found = Some(if context.is_null() { Err(failed("ibv_open_device", device)) } else { Ok(context) });
            }
        })?;
        let Some(opened) = found else { return Ok(None) };
        let context = Context { verbs: verbs.clone(), raw: opened?, device: device.into() };
        // SAFETY: the context is open, so its descriptor is; events are read while polling, which must not block.
        let flags = unsafe { libc::fcntl((*context.raw).async_fd, libc::F_GETFL) };
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl((*context.raw).async_fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(failed("fcntl(async_fd)", device));
        }
        Ok(Some(context))
    }

    pub fn query_device(&self) -> Result<sys::ibv_device_attr> {
        let mut attr = sys::ibv_device_attr::default();
        // SAFETY: the context is open, and the call fills `attr`.
        match unsafe { (self.verbs.ibv_query_device)(self.raw, &raw mut attr) } {
            0 => Ok(attr),
            code => Err(refused("ibv_query_device", &self.device, code, "")),
        }
    }

    pub fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr> {
        let mut attr = sys::ibv_port_attr::default();
        // SAFETY: the exported function fills the first part of the structure, which has kept its layout.
        match unsafe { (self.verbs.ibv_query_port)(self.raw, port, (&raw mut attr).cast()) } {
            0 => Ok(attr),
            code => Err(refused("ibv_query_port", &self.device, code, "")),
        }
    }

    /// The partition key at an index; 0 is an empty entry.
    pub fn query_pkey(&self, port: u8, index: u16) -> Option<u16> {
        let mut pkey = 0;
        // SAFETY: the context is open, and the call writes only to `pkey`.
        let code = unsafe { (self.verbs.ibv_query_pkey)(self.raw, port, index.into(), &raw mut pkey) };
        (code == 0).then_some(u16::from_be(pkey))
    }

    /// The GID at an index, as bytes.
    pub fn query_gid(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        let mut gid = sys::ibv_gid::default();
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is open, and the call writes only to `gid`.
        let code = unsafe { (self.verbs.ibv_query_gid)(self.raw, port, index, &raw mut gid) };
        // SAFETY: every bit pattern is a valid array of bytes.
        (code == 0).then_some(unsafe { gid.raw })
    }

    /// The entries of a port's GID table that are in use. Types and interfaces come from sysfs, since only newer
    /// versions of the library report them.
    pub fn gids(&self, port: u8, attr: &sys::ibv_port_attr) -> Vec<Gid> {
        let place = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs", self.device);
        let text = |what: &str, index: u32| {
            let text = std::fs::read_to_string(format!("{place}/{what}/{index}")).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let ethernet = u32::from(attr.link_layer) == sys::IBV_LINK_LAYER_ETHERNET;
        // An address handle has 8 bits for the index.
        (0..u32::try_from(attr.gid_tbl_len.clamp(0, 256)).unwrap_or(0))
            .filter_map(|index| {
                let raw = self.query_gid(port, index).filter(|raw| *raw != [0; 16])?;
                let kind = match text("types", index) {
                    _ if !ethernet => GidType::InfiniBand,
                    Some(text) if text.contains("v2") => GidType::RoceV2,
                    _ => GidType::RoceV1,
                };
                Some(Gid { index, raw, kind, interface: text("ndevs", index) })
            })
            .collect()
    }
}

/// Calls `each` with every device and its name.
pub(super) fn with_devices(verbs: &Verbs, mut each: impl FnMut(*mut sys::ibv_device, &str)) -> Result<()> {
    let mut count = 0;
    // SAFETY: the call returns a list of `count` devices, which is freed below.
    let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return match failed("ibv_get_device_list", "ibverbs") {
            // A kernel without InfiniBand has no devices, which is no failure.
            Error::Fabric { fault, .. } if fault.code == libc::ENOSYS || fault.code == libc::ENOENT => Ok(()),
            error => Err(error),
        };
    }
    for nth in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries and is not freed yet.
        unsafe {
            let device = *list.add(nth);
            each(device, &verbs.device_name(device));
        }
    }
    // SAFETY: the list is from above and no longer used: opened devices outlive it.
    unsafe { (verbs.ibv_free_device_list)(list) };
    Ok(())
}

/// A protection domain, which memory and queue pairs of one rail share.
pub(super) struct Domain {
    pub context: Context,
    pub pd: *mut sys::ibv_pd,
    /// The rail's name.
    pub rail: String,
}

// SAFETY: as for `Context`.
unsafe impl Send for Domain {}
// SAFETY: as for `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: Context, rail: &str) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let pd = unsafe { (context.verbs.ibv_alloc_pd)(context.raw) };
        if pd.is_null() {
            return Err(failed("ibv_alloc_pd", rail));
        }
        Ok(Arc::new(Domain { context, pd, rail: rail.into() }))
    }

    pub fn verbs(&self) -> &Verbs {
        &self.context.verbs
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: every object made in the domain holds an `Arc` of it, so all are gone.
        unsafe { (self.verbs().ibv_dealloc_pd)(self.pd) };
    }
}
