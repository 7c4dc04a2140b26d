-- tally: what has happened to each task of a tube, which a client of beanstalkd may ask for: where
-- the record says `tube`, of tasks that were put with a delay, or taken once.
-- `tally` (hash by id): the delays in seconds at the put and now, then how often it was reserved,
-- timed out, released, buried and kicked.

-- Those numbers of a task of a tube, with what has happened to it now: one more of that, or these
-- seconds.
local function tally(id, what, seconds)
  if S.tube ~= 1 then return nil end
  local places = { delayed = 1, delay = 2, take = 3, expired = 4, release = 5, bury = 6, kick = 7 }
  local packed, raw, found = '>I4I4I4I4I4I4I4', redis.call('HGET', key('tally'), id), nil
  found = raw and #raw == 28 and { unpack_struct(packed, raw) } or { 0, 0, 0, 0, 0, 0, 0 }
  found[8] = nil -- behind what was read
  local at = places[what]
  if at then
    found[at] = math.min(seconds or found[at] + 1, 4294967295)
    redis.call('HSET', key('tally'), id, pack(packed, unpack(found)))
  end
  return found
end
