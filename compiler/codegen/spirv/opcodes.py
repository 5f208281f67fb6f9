"""The numbers of SPIR-V that the writer uses, under the names of the specification."""

from __future__ import annotations


class Opcode:
    """Instructions."""

    Name, Extension, ExtInstImport, ExtInst = 5, 10, 11, 12
    MemoryModel, EntryPoint, ExecutionMode, Capability = 14, 15, 16, 17
    TypeVoid, TypeBool, TypeInt, TypeFloat, TypeVector, TypeArray = 19, 20, 21, 22, 23, 28
    TypeStruct, TypePointer, TypeFunction = 30, 32, 33
    ConstantTrue, ConstantFalse, Constant, ConstantComposite = 41, 42, 43, 44
    SpecConstant, SpecConstantComposite = 50, 51
    Function, FunctionParameter, FunctionEnd, FunctionCall, Variable = 54, 55, 56, 57, 59
    Load, Store, AccessChain, Decorate, MemberDecorate = 61, 62, 65, 71, 72
    CompositeConstruct, CompositeExtract = 80, 81
    ConvertFToU, ConvertFToS, ConvertSToF, ConvertUToF = 109, 110, 111, 112
    UConvert, SConvert, FConvert, ConvertUToPtr, Bitcast = 113, 114, 115, 120, 124
    FNegate, IAdd, FAdd, ISub, FSub, IMul, FMul = 127, 128, 129, 130, 131, 132, 133
    UDiv, SDiv, FDiv, UMod, SRem = 134, 135, 136, 137, 138
    IsNan, LogicalEqual, LogicalNotEqual, LogicalOr, LogicalAnd, LogicalNot, Select = 156, 164, 165, 166, 167, 168, 169
    IEqual, INotEqual, UGreaterThan, SGreaterThan, UGreaterThanEqual, SGreaterThanEqual = 170, 171, 172, 173, 174, 175
    ULessThan, SLessThan, ULessThanEqual, SLessThanEqual = 176, 177, 178, 179
    FOrdEqual, FUnordEqual, FOrdNotEqual, FUnordNotEqual, FOrdLessThan, FUnordLessThan = 180, 181, 182, 183, 184, 185
    FOrdGreaterThan, FUnordGreaterThan, FOrdLessThanEqual, FUnordLessThanEqual = 186, 187, 188, 189
    FOrdGreaterThanEqual, FUnordGreaterThanEqual = 190, 191
    ShiftRightLogical, ShiftRightArithmetic, ShiftLeftLogical = 194, 195, 196
    BitwiseOr, BitwiseXor, BitwiseAnd, Not, BitCount = 197, 198, 199, 200, 205
    ControlBarrier, MemoryBarrier, AtomicLoad, AtomicStore = 224, 225, 227, 228
    AtomicExchange, AtomicCompareExchange, AtomicIAdd, AtomicISub = 229, 230, 234, 235
    AtomicSMin, AtomicUMin, AtomicSMax, AtomicUMax, AtomicAnd, AtomicOr, AtomicXor = 236, 237, 238, 239, 240, 241, 242
    LoopMerge, SelectionMerge, Label, Branch, BranchConditional = 246, 247, 248, 249, 250
    Return, ReturnValue, Unreachable, AtomicFAdd = 253, 254, 255, 6035


class Math:
    """Functions of GLSL.std.450."""

    RoundEven, Trunc, FAbs, Floor, Ceil, Sin, Cos, Exp2, Sqrt, Fma, FindILsb, FindUMsb = (
        2,
        3,
        4,
        8,
        9,
        13,
        14,
        29,
        31,
        50,
        73,
        75,
    )


class StorageClass:
    """Storage classes."""

    Input, Workgroup, Private, Function, PushConstant, PhysicalStorageBuffer = 1, 4, 6, 7, 9, 5349


class Capability:
    """What a module needs of the device."""

    Shader, Float16, Float64, Int64, Int64Atomics, Int16, Int8 = 1, 9, 10, 11, 12, 22, 39
    StorageBuffer16BitAccess, StorageBuffer8BitAccess = 4433, 4448
    DenormPreserve, SignedZeroInfNanPreserve, RoundingModeRTE = 4464, 4466, 4467
    PhysicalStorageBufferAddresses, AtomicFloat32AddEXT, AtomicFloat64AddEXT = 5347, 6033, 6034


class Mode:
    """Execution modes of an entry point."""

    DenormPreserve, SignedZeroInfNanPreserve, RoundingModeRTE = 4459, 4461, 4462


class Decoration:
    """What is said of a result."""

    SpecId, Block, ArrayStride, BuiltIn, Offset, NoContraction = 1, 2, 6, 11, 35, 42


class BuiltIn:
    """Variables and constants of the launch."""

    NumWorkgroups, WorkgroupSize, WorkgroupId, LocalInvocationId = 24, 25, 26, 27


class MemoryScope:
    """Whose threads see an access."""

    Device, Workgroup = 1, 2


class Semantics:
    """Order of memory accesses: relaxed, or both ways, for kinds of memory."""

    Relaxed, AcquireRelease, UniformMemory, WorkgroupMemory = 0, 0x8, 0x40, 0x100


GLSL450, PHYSICAL_STORAGE_BUFFER_64, GL_COMPUTE, ALIGNED = 1, 5348, 5, 2
MAGIC, VERSION = 0x07230203, 0x00010500
