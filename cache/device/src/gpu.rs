//! The GPUs that this process sees.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};

use crate::driver::Driver;
use crate::error::Result;

/// A GPU, or an instance of one that is divided (MIG).
///
/// Its number counts the GPUs that this process sees, in the order of this process's `CUDA_VISIBLE_DEVICES`. Processes
/// that speak of one GPU therefore name its [`GpuUuid`].
#[derive(Clone, Copy)]
pub struct Gpu {
    driver: Driver,
    number: u32,
    raw: CUdevice,
}

impl Gpu {
    /// Returns the GPUs that this process sees.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn all(driver: Driver) -> Result<Vec<Self>> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (driver.functions().cuDeviceGetCount)(&mut count) };
        driver.check(code, || "cannot count the GPUs".to_owned())?;
        let count = u32::try_from(count).unwrap_or(0);
        (0..count).map(|number| Self::at(driver, number)).collect()
    }

    /// Returns the GPU with this number.
    ///
    /// # Errors
    /// If this process sees no such GPU.
    pub fn at(driver: Driver, number: u32) -> Result<Self> {
        let mut raw = 0;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (driver.functions().cuDeviceGet)(&mut raw, ordinal) };
        driver.check(code, || format!("cannot find GPU {number}"))?;
        Ok(Gpu {
            driver,
            number,
            raw,
        })
    }

    /// Returns the number of the GPU in this process.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the model, such as `NVIDIA H200`. The name of an instance says so:
    /// `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn name(&self) -> Result<String> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes at most as many bytes as it is told, which the array has.
        let code = unsafe {
            (self.driver.functions().cuDeviceGetName)(
                name.as_mut_ptr(),
                name.len() as c_int,
                self.raw,
            )
        };
        self.check(code, "get the name")?;
        // The driver ends the name with a zero. This makes sure that it is there.
        name[name.len() - 1] = 0;
        // SAFETY: the array has a zero, and lives until the text is copied.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns the identity of the GPU, which is the same in all processes of the machine.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn uuid(&self) -> Result<GpuUuid> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // Not the function without `_v2`: it gives all instances of a divided GPU the same UUID.
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (self.driver.functions().cuDeviceGetUuid_v2)(&mut uuid, self.raw) };
        self.check(code, "get the UUID")?;
        Ok(GpuUuid {
            bytes: uuid.bytes.map(|byte| byte as u8),
            is_instance: self.name()?.contains(" MIG "),
        })
    }

    /// Returns the bytes of the GPU's memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (self.driver.functions().cuDeviceTotalMem_v2)(&mut bytes, self.raw) };
        self.check(code, "get the size of the memory")?;
        Ok(bytes as u64)
    }

    /// Returns the compute capability, such as (9, 0).
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        Ok((self.attribute(MAJOR)?, self.attribute(MINOR)?))
    }

    /// Returns the GPU's place on the PCI bus. All instances of one that is divided have the same.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn pci_address(&self) -> Result<PciAddress> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as BUS, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as DEVICE,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as DOMAIN,
        };
        Ok(PciAddress {
            domain: self.attribute(DOMAIN)?,
            bus: self.attribute(BUS)?,
            device: self.attribute(DEVICE)?,
        })
    }

    /// Returns true if the GPU can copy from host memory that was pinned for reading only.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn pins_read_only(&self) -> Result<bool> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        Ok(self.attribute(attribute)? != 0)
    }

    /// Returns true if other processes can map memory of the GPU that this process passes to them.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn shares_memory(&self) -> Result<bool> {
        let attribute =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        Ok(self.attribute(attribute)? != 0)
    }

    /// Returns who may use the GPU.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn compute_mode(&self) -> Result<ComputeMode> {
        let mode = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?;
        Ok(match mode {
            0 => ComputeMode::Shared,
            2 => ComputeMode::Prohibited,
            // 3 is one process, and 1, which newer drivers do not have, one thread.
            _ => ComputeMode::Exclusive,
        })
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe {
            (self.driver.functions().cuDeviceGetAttribute)(&mut value, attribute, self.raw)
        };
        self.check(code, "get an attribute")?;
        Ok(value.unsigned_abs())
    }

    fn check(&self, code: u32, what: &str) -> Result<()> {
        self.driver
            .check(code, || format!("cannot {what} of {self}"))
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }
}

/// Writes `GPU 0`.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.number)
    }
}

/// The place of a GPU on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

/// Writes the address as Linux names it: `0000:c1:00.0`. GPUs are the first function of their device.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.0",
            self.domain, self.bus, self.device
        )
    }
}

/// The processes that may use a GPU at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number.
    Shared,
    /// One.
    Exclusive,
    /// None.
    Prohibited,
}

/// The identity of a GPU, or of an instance of one that is divided (MIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuUuid {
    bytes: [u8; 16],
    is_instance: bool,
}

/// Writes the UUID as `nvidia-smi -L` shows it, and as `CUDA_VISIBLE_DEVICES` takes it.
impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_instance { "MIG" } else { "GPU" })?;
        for (i, byte) in self.bytes.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&i) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_cuda_visible_devices_takes_it() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        let text = |is_instance| GpuUuid { bytes, is_instance }.to_string();
        assert_eq!(text(false), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(text(true), "MIG-00112233-4455-6677-8899-aabbccddeeff");
    }
}
