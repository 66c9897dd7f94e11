/* Checked entries to the kernels: each asserts the argument struct's sizes and pointers, then launches on the stream.
 */
#ifndef DMUON_TENSOR_OPS_H
#define DMUON_TENSOR_OPS_H

#include "device/device.h"
#include "kernels/kernels.h"

/* One function per kernel: void ops_<name>(Stream *stream, <ArgStruct> args). */
#define OPS_DECLARE_(id, args, name) void ops_##name(Stream *stream, args a);
KERNEL_LIST(OPS_DECLARE_)
#undef OPS_DECLARE_

#endif
