#!/bin/sh
# Builds every kernel of this folder.
#
#   build.sh ptx                  NAME.ptx beside NAME.cu, with clang and no CUDA toolkit; committed, the same bytes
#                                 from every run of one clang version
#   build.sh native DIR ARCH...   DIR/NAME.fatbin with nvcc, native code for each ARCH (90 is sm_90)
#   build.sh host FILE            one shared object of host functions, for the driver double
#
# CLANG, NVCC and CXX name the compilers.
set -eu
cd "$(dirname "$0")"
case "${1-}" in
ptx)
	for f in *.cu; do
		"${CLANG:-clang-19}" -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-feature=+ptx63 -nocudainc -nocudalib \
			-std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Werror -S "$f" -o - |
			sed -E 's,[[:space:]]*//.*$,,; /^[[:space:]]*$/d' >"${f%.cu}.ptx.tmp"
		mv "${f%.cu}.ptx.tmp" "${f%.cu}.ptx"
	done
	;;
native)
	dir=$2
	shift 2
	gencode=
	for arch; do gencode="$gencode -gencode arch=compute_$arch,code=sm_$arch"; done
	mkdir -p "$dir"
	for f in *.cu; do "${NVCC:-nvcc}" -fatbin -std=c++17 -O3 -fmad=false $gencode "$f" -o "$dir/${f%.cu}.fatbin"; done
	;;
host)
	"${CXX:-g++}" -std=c++17 -O2 -ffp-contract=off -fPIC -shared -Wall -Wextra -Werror -DDDPSTEP_HOST -I../internal/gpudouble -o "$2" -x c++ *.cu
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
