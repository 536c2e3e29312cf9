package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
)

// overlay gives each option that the command line leaves out its value from
// the environment, where SHARDFEED_GLOBAL_BATCH is --global-batch, or else from
// a TOML file, where global-batch is; an option named by neither keeps its
// default. No file means the one that SHARDFEED_CONFIG names, if it names one;
// an empty variable counts as none. Integers of TOML end at 2^63-1: a larger
// seed is written as a string.
//
// Every error is a usageError and says the variable, or the file and line, and
// the option.
func overlay(flags *pflag.FlagSet, getenv func(string) string, file string) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if value := getenv(variable(f.Name)); value != "" && configurable(f) && !f.Changed {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", variable(f.Name), err))
			}
		}
	})
	if file == "" {
		file = getenv(variable("config"))
	}
	if file != "" {
		errs = append(errs, overlayFile(flags, file))
	}
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

func variable(option string) string {
	return "SHARDFEED_" + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// configurable leaves out what only a command line can say.
func configurable(f *pflag.Flag) bool {
	return f != nil && !slices.Contains([]string{"config", "help", "version"}, f.Name)
}

func overlayFile(flags *pflag.FlagSet, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	values := map[string]any{}
	var bad *toml.DecodeError
	if err := toml.Unmarshal(text, &values); errors.As(err, &bad) {
		line, _ := bad.Position()
		return fmt.Errorf("%s:%d: %w", file, line, err)
	} else if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	// A strict decode into nothing reports every key, with its line.
	var keys *toml.StrictMissingError
	err = toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&struct{}{})
	if !errors.As(err, &keys) {
		return err // nil: no key
	}
	var errs []error
	for _, key := range keys.Errors {
		name := strings.Join(key.Key(), ".")
		if err := setUnchanged(flags, name, values[name]); err != nil {
			line, _ := key.Position()
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, line, err))
		}
	}
	return errors.Join(errs...)
}

// setUnchanged sets an option from a TOML value, unless it is set already.
func setUnchanged(flags *pflag.FlagSet, name string, value any) error {
	f := flags.Lookup(name)
	if !configurable(f) {
		return fmt.Errorf("there is no option %s to set in a file", name)
	}
	switch value.(type) {
	case string, bool, int64, float64:
	default:
		return fmt.Errorf("option %s: expected one string, number or boolean, found %T", name, value)
	}
	if f.Changed {
		return nil
	}
	return flags.Set(name, fmt.Sprint(value))
}
