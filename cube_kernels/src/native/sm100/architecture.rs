/// What the kernels are compiled for: instructions of tensor memory are not compatible from one chip to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Compute capability 10.0: B200, GB200.
    Sm100,
    /// Compute capability 10.3: B300, GB300.
    Sm103,
}

impl Architecture {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sm100, Self::Sm103];

    /// That of a compute capability, times ten; `None` for all others.
    pub fn of(capability: u32) -> Option<Self> {
        match capability {
            100 => Some(Self::Sm100),
            103 => Some(Self::Sm103),
            _ => None,
        }
    }

    /// The compiler's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm100 => "sm_100a",
            Self::Sm103 => "sm_103a",
        }
    }

    /// NVRTC's options.
    pub fn options(self) -> Vec<String> {
        let target = format!("--gpu-architecture={}", self.name());
        let others = ["--std=c++17", "--use_fast_math", "--ptxas-options=-v"].map(String::from);
        std::iter::once(target).chain(others).collect()
    }

    /// Of 16 exponentials of a softmax in bf16, those that are polynomials: a multiprocessor of compute capability 10.0 has 16
    /// exponentials a cycle, which take as long as the products; 10.3 has twice as many.
    pub(super) fn polynomials(self) -> usize {
        match self {
            Self::Sm100 => 4,
            Self::Sm103 => 0,
        }
    }
}
