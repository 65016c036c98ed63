use super::*;
impl Mover for host::HostBacking {
    fn costs(&self) -> Costs {
        Costs::COPY
    }
    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let (f, t) = (
            std::ptr::with_exposed_provenance::<u8>(from.get() as usize),
            std::ptr::with_exposed_provenance_mut::<u8>(to.get() as usize),
        );
        // SAFETY: contract
        unsafe { std::ptr::copy(f, t, bytes.get() as usize) };
        Ok(())
    }
    unsafe fn discard(&self, _: Address, _: Bytes) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }
}
