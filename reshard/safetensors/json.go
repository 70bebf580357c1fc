package safetensors

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// object reads an object and calls f for each key, which must read the value. A key that is there twice is an error.
func object(d *json.Decoder, f func(key string) error) error {
	if err := delim(d, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("key %v is no string", t)
		}
		if seen[key] {
			return fmt.Errorf("key %q twice", clip([]byte(key)))
		}
		seen[key] = true
		if err := f(key); err != nil {
			return err
		}
	}
	return delim(d, '}')
}

// delim reads a bracket.
func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("%v where %v belongs", t, want)
	}
	return nil
}

// stringMap reads an object of strings.
func stringMap(d *json.Decoder) (map[string]string, error) {
	m := map[string]string{}
	err := object(d, func(key string) error {
		t, err := d.Token()
		if err != nil {
			return err
		}
		s, ok := t.(string)
		if !ok {
			return fmt.Errorf("%q: %v is no string", clip([]byte(key)), t)
		}
		m[key] = s
		return nil
	})
	return m, err
}

// numbers reads an array of integers that are not negative, most at most.
func numbers(d *json.Decoder, most int) ([]int64, error) {
	d.UseNumber()
	if err := delim(d, '['); err != nil {
		return nil, err
	}
	list := []int64{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		text, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%v is no number", t)
		}
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%v is no integer from 0 to 2^63-1", t)
		}
		if len(list) == most {
			return nil, fmt.Errorf("more than %d numbers", most)
		}
		list = append(list, n)
	}
	return list, delim(d, ']')
}

// clip shortens what a file says for an error.
func clip(b []byte) string {
	const most = 80
	if len(b) > most {
		return string(b[:most]) + "..."
	}
	return string(b)
}
