// What an application does with go-redis: arguments are the socket path and the version of the protocol.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

func must[T any](answer T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return answer
}

func main() {
	ctx := context.Background()
	protocol := must(strconv.Atoi(os.Args[2]))
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: os.Args[1], Username: "kv", Password: "x", DB: 1, Protocol: protocol, PoolSize: 1,
	})
	found := map[string]any{}
	found["set"] = must(client.Set(ctx, "a", "1", 0).Result())
	found["get"] = must(client.Get(ctx, "a").Result())
	_, err := client.Get(ctx, "none").Result()
	found["none"] = nil
	if err != redis.Nil {
		found["none"] = fmt.Sprint(err)
	}
	found["mget"] = must(client.MGet(ctx, "a", "none").Result())
	many := must(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := 0; n < 100; n++ {
			pipe.Set(ctx, fmt.Sprintf("k%d", n), fmt.Sprintf("v%d", n), 0)
		}
		return nil
	}))
	found["many"] = len(many)
	var read *redis.StringCmd
	must(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "b", "2", 0)
		read = pipe.Get(ctx, "b")
		return nil
	}))
	found["multi"] = []any{"OK", read.Val()}
	found["put"] = must(client.Do(ctx, "SF.PUT", "other", "x", "y").Result())
	found["window"] = must(client.Do(ctx, "SF.WPUT", "win", "k", 0, "w").Result())
	found["fetch"] = must(client.Do(ctx, "SF.WFETCH", "win", "k", 0, 10).Slice())
	found["commit"] = must(client.Do(ctx, "SF.COMMIT", "SEQ", 1, "GROUP", "app", "OFFSETS", "flights", 1, 12).Slice())
	found["offsets"] = must(client.Do(ctx, "SF.OFFSETS").Slice())
	keys := 0
	scan := client.Scan(ctx, 0, "k*", 30).Iterator()
	for scan.Next(ctx) {
		keys++
	}
	found["keys"] = keys
	if _, err := client.Do(ctx, "EXPIRE", "a", 5).Result(); err != nil {
		found["refused"] = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(found)
	client.Close()
}
