// The unwinder of libgcc_s as symbols to link with: see cargo_build.py. None of it is ever called, since the
// system's libgcc_s.so.1 is loaded in its place. All of it stands here: for a symbol that is missing, the linker takes
// Zig's, and with it functions that read libgcc's data by another layout.
#define SYMBOL(name) void name(void) {}

SYMBOL(_Unwind_Backtrace)
SYMBOL(_Unwind_DeleteException)
SYMBOL(_Unwind_FindEnclosingFunction)
SYMBOL(_Unwind_Find_FDE)
SYMBOL(_Unwind_ForcedUnwind)
SYMBOL(_Unwind_GetCFA)
SYMBOL(_Unwind_GetDataRelBase)
SYMBOL(_Unwind_GetGR)
SYMBOL(_Unwind_GetIP)
SYMBOL(_Unwind_GetIPInfo)
SYMBOL(_Unwind_GetLanguageSpecificData)
SYMBOL(_Unwind_GetRegionStart)
SYMBOL(_Unwind_GetTextRelBase)
SYMBOL(_Unwind_RaiseException)
SYMBOL(_Unwind_Resume)
SYMBOL(_Unwind_Resume_or_Rethrow)
SYMBOL(_Unwind_SetGR)
SYMBOL(_Unwind_SetIP)
