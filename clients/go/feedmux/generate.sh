#!/usr/bin/env bash
# Writes feedmuxpb/ from proto/, or below another folder: generate.sh [FOLDER]. Needs go, and buf on PATH.
set -euo pipefail
out="$(realpath "${1:-$(dirname "${BASH_SOURCE[0]}")}")"
cd "$(dirname "${BASH_SOURCE[0]}")"

# The plugins' versions are those of tools/go.mod.
(cd tools && GOBIN="$OLDPWD/.bin" go install \
  google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc)
PATH="$PWD/.bin:$PATH" buf generate --output "$out"
