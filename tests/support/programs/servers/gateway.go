// The S3 gateway of versitygw over a folder, without its other backends and its own tests of 2 MB, which its command has.
//
//	gateway --access A --secret S --region R --port HOST:PORT --quiet posix [--sidecar DIR | --versioning-dir DIR] FOLDER
//
// Arguments, their defaults and the settings behind them are those of the command.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	config := embedgw.Config{
		MaxConnections: 250_000, MaxRequests: 100_000, AdminMaxConnections: 250_000, AdminMaxRequests: 100_000,
		MultipartMaxParts: 10_000,
	}
	var port string
	whole := flag.NewFlagSet("gateway", flag.ExitOnError)
	whole.StringVar(&config.RootUserAccess, "access", "", "")
	whole.StringVar(&config.RootUserSecret, "secret", "", "")
	whole.StringVar(&config.Region, "region", "us-east-1", "")
	whole.StringVar(&port, "port", ":7070", "")
	whole.BoolVar(&config.Quiet, "quiet", false, "")
	_ = whole.Parse(os.Args[1:])
	config.Ports = []string{port}
	if whole.Arg(0) != "posix" {
		log.Fatalf("%q is not the backend posix", whole.Arg(0))
	}

	options := posix.PosixOpts{Concurrency: 5_000, IOBufferSize: 1 << 20, CopyObjectThreshold: 5 << 30}
	options.SetNewDirPerm(0o755)
	options.SetNewFilePerm(0o644)
	backend := flag.NewFlagSet("posix", flag.ExitOnError)
	backend.StringVar(&options.SideCarDir, "sidecar", "", "")
	backend.StringVar(&options.VersioningDir, "versioning-dir", "", "")
	_ = backend.Parse(whole.Args()[1:])
	folder := backend.Arg(0)

	var facts meta.MetadataStorer = meta.XattrMeta{}
	if options.SideCarDir != "" {
		facts = must(meta.NewSideCar(options.SideCarDir))
	} else if err := (meta.XattrMeta{}).Test(folder); err != nil {
		log.Fatal(err)
	}
	served := must(posix.New(folder, facts, options))
	if err := embedgw.RunVersityGW(context.Background(), served, &config); err != nil {
		log.Fatal(err)
	}
}
