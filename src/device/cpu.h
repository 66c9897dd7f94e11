/* The CPU backend's constructor, for device.c. */
#ifndef DMUON_DEVICE_CPU_H
#define DMUON_DEVICE_CPU_H

#include "device/device.h"

DM_NODISCARD Status cpu_create(Device **device, const DeviceOptions *options);

#endif
