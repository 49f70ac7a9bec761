//! Asynchronous events of ports, queue pairs and the device.

use verbs_sys as sys;

use super::domain::Domain;

/// An event, reduced to the rail's reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The port went down.
    PortDown(u8),
    /// The port's addresses changed. Ours may still be there.
    AddressChange(u8),
    /// One queue pair failed.
    QueuePair(*mut sys::ibv_qp),
    /// The device, the completion queue or the receive queue failed, and with it everything.
    Fatal,
    /// The rail does not react to it.
    Other,
}

/// The next event, with the number for [`sys::Verbs::event_text`]; `None` when there is none now.
pub(super) fn next(domain: &Domain) -> Option<(Event, sys::ibv_event_type)> {
    let mut raw = sys::ibv_async_event::default();
    // SAFETY: the context is open, its descriptor does not block, and the call writes only to `raw`.
    if unsafe { (domain.verbs().ibv_get_async_event)(domain.context.raw, &raw mut raw) } != 0 {
        return None;
    }
    // SAFETY: the event's type determines the member of the union that is set; those that are read here have plain
    // types.
    let event = unsafe {
        let port = u8::try_from(raw.element.port_num).unwrap_or(0);
        match raw.event_type {
            sys::IBV_EVENT_PORT_ERR => Event::PortDown(port),
            sys::IBV_EVENT_GID_CHANGE | sys::IBV_EVENT_LID_CHANGE | sys::IBV_EVENT_PKEY_CHANGE => {
                Event::AddressChange(port)
            }
            sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
                Event::QueuePair(raw.element.qp)
            }
            sys::IBV_EVENT_DEVICE_FATAL | sys::IBV_EVENT_CQ_ERR | sys::IBV_EVENT_SRQ_ERR => Event::Fatal,
            _ => Event::Other,
        }
    };
    let kind = raw.event_type;
    // SAFETY: the event came from above and is acknowledged once. Objects wait for that when they are destroyed.
    unsafe { (domain.verbs().ibv_ack_async_event)(&raw mut raw) };
    Some((event, kind))
}
