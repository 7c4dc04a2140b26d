-- record: what every script begins with: its arguments, the shard's record, and how it refuses.
-- The shared files are put, in the order of queue/shared_lua.py, before every verb's text, after
-- the names KEYS and ARGV. They hold local functions only.
-- KEYS    1 the shard's prefix `{cluster:queue:shard}`
--         2 the store's view counter, on an embedded store only; last, on a cluster only, the first
--           and `~`: no such key ever is, so that the server refuses the script while keys of the
--           shard are on the move (docs/decisions/0016-redis-cluster.md)
-- ARGV    1 now_ms (unix; "0": the store's TIME), or `-known` (the store's TIME, and `known` as
--           below), or all of it as `now_ms~known~steps~lag`, and `/layout` in a queue that was cut
--           anew
--         2 the caller's holder `node.boot` ("-": none), and `#stream.number` behind it where the
--           call may be sent again (see `sequence`)
--         3… the verb's own
local P, CALLER
-- Serial numbers of calls, as of the clients of a Raft log (Ongaro 2014, 6.3): the caller's node,
-- the stream and the number of the call; nil: it has none. A numbered call is run once, and only
-- behind the one before it in its stream; a stream begins with 1. Of each node the record has the
-- latest: `by:NODE` is its stream, `at:NODE` four times its number, and what its answers were
-- besides 1 (1: some put's, 2: some end's of a lease). `floor` is the highest stream of the nodes
-- that were forgotten: no stream of one that the record does not name may be as low.
local sequence
local now, now_us
local clock_us -- the store's TIME, whatever the caller says
-- The leases' clock as the caller's own measures it, never ahead; 0: it does not say (see
-- lease_clock).
local known
local view -- the store's, read at the first lease
local S -- the shard record, numbers as numbers
local changed -- fields of the record to write back
local counts -- counters to raise
local joined -- this verb is a part of a batch: another finishes for it
local alarm_lowered, woke, counted
-- What became ready is left to whoever comes first: the caller hears of it no sooner than the
-- others.
local for_all
local freed -- a task is gone: a queue with a capacity has room again
local ended -- ids of tasks whose end somebody waits for
-- Ids of tasks of which a record cannot be read, and what finish() does with them (see set_aside).
local aside, bury_them
-- Of the hashes with records (see layout.lua): the smallest power of two not below their number,
-- once it is known.
local bucket_size
local lanes -- their rules, once there was need of them
-- 'grows': put-like scripts set it; on a full store they are refused, all others must get through.
-- 'reads': of scripts whose header says READS; what they find out is not written, so that they run
-- in a copy of the data, too.
local effect
local pack, unpack_struct
local FORMAT = 2 -- of the shard, as this version writes it (see docs/decisions/0003-token-rows.md)
-- The one thing that the library keeps between two calls: records as they were read and written, by
-- their shards; false where that is void. One counts only while the record's `seq` is the kept
-- one's, and is read anew each second: see open() and docs/decisions/0010-script-library.md.
local kept = { many = 0 }
local NEVER = 4398046511104 -- 2^42: later than any time on the wire
local LATEST = 2 * NEVER -- and than any in a record: an update adds a delay to the time

-- Nothing is read yet and nothing to be written: as before the first verb, also after one that was
-- refused before it wrote.
local function afresh()
  S, lanes, bucket_size, bury_them = nil, nil, nil, nil
  changed, counts, ended, aside = {}, {}, {}, {}
  alarm_lowered, woke, counted, freed, for_all = false, false, false, false, false
end

-- Before every verb. As a library this file is read once, so whatever a verb changes begins here
-- and not where it is named.
local function begin(keys, arguments)
  KEYS, ARGV = keys, arguments
  P, CALLER = KEYS[1], ARGV[2]
  now, now_us, clock_us, known, view = nil, nil, nil, nil, nil
  joined, effect, sequence = false, nil, nil
  local stream = CALLER and string.find(CALLER, '#', 1, true)
  if stream then
    local node, boot, by, at = string.match(CALLER, '^(.*)%.(%d+)#(%d+)%.(%d+)$')
    CALLER = string.sub(CALLER, 1, stream - 1)
    sequence = { node, tonumber(by), tonumber(at) }
  end
  afresh()
  pack, unpack_struct = struct.pack, struct.unpack
end

-- Exact for every integer below 2^53 (`tostring` and `..` round). redis.call writes the numbers it
-- is given exactly, too.
local function text(n) return string.format('%d', n) end
local function refuse(message) error({ err = message }, 0) end

-- Runs a verb. A refusal becomes an error reply of its message alone: Redis 6.2 cannot raise a
-- table, later ones add the script's line.
local function run(verb)
  local ok, reply = pcall(verb)
  if ok then return reply end
  -- Redis 7's own pcall has taken the message out already.
  if type(reply) == 'table' then reply = reply.err end
  -- 6.2's redis.call.
  local message = string.match(reply, '^%u+ .*$')
    or string.match(reply, '^@user_script: ?%d+: %-?(%u+ .*)$')
  if message then return { err = message } end
  error(reply, 0)
end

local function key(name) return P .. ':' .. name end

local function int(i, name, low, high)
  local raw = ARGV[i]
  local n = raw and string.match(raw, '^-?%d+$') and tonumber(raw)
  if not n then refuse('BADARG ' .. name .. ' is not an integer: ' .. tostring(raw)) end
  if low and (n < low or n > high) then
    refuse(
      'BADARG ' .. name .. ' is ' .. raw .. '; allowed is ' .. text(low) .. ' to ' .. text(high)
    )
  end
  return n
end

-- The counters of every put, take and ack stand in the record, which is written anyway; all others
-- in a hash of their own.
local IN_RECORD = { put = 'puts', taken = 'takes', acked = 'acks' }
local function count(name, n)
  local field = IN_RECORD[name]
  if field then
    S[field] = (S[field] or 0) + (n or 1)
    changed[field] = true
  else
    counts[name] = (counts[name] or 0) + (n or 1)
    counted = true
  end
end

local function set(field, value)
  S[field] = value
  changed[field] = true
end

-- A queue that is cut anew counts its layouts, and callers say with the time which one they know:
-- `now_ms/layout`. A newer one is adopted.
local function agree(layout)
  local stored = S.layout
  if layout < stored then
    S = nil -- no other part of a batch may run either
    refuse(
      'RECUT '
        .. text(stored)
        .. ' the queue of '
        .. P
        .. ' was cut anew since the caller read its settings'
    )
  end
  set('layout', layout)
end

-- The store's clock has stepped, so much in all; a caller that knows of more steps is believed.
local function step(steps, lag)
  if steps <= S.steps then return end
  -- It lasts as long as was said.
  if S.paused > 0 and S.paused < NEVER then set('paused', math.max(1, S.paused + lag - S.lag)) end
  set('steps', steps)
  set('lag', lag)
  set('alarm', 0) -- it was reckoned by the former lag: a lease may have ended long ago
  alarm_lowered = true
end

-- The leases' clock, by which they begin and end: the store's less `lag`, so that it runs on evenly
-- when that one steps (docs/decisions/0015-clock.md). Until a step is found and `lag` follows,
-- `known` says where it stands at least.
local function lease_clock() return math.max(now - S.lag, known) end

-- Whether the store's clock seems to have stepped forward, by more than five seconds, so that
-- nothing may be ended by it. The call may just have been under way long.
local function lease_doubt() return known > 0 and now - S.lag > known + 5000 end

-- What a field that the record lacks means. As a metatable: to write all of them into each record
-- took as long as to read it.
local ABSENT = {
  __index = {
    format = 0,
    epoch = 0,
    view = 0,
    n = 0,
    seq = 0,
    taken = 0,
    turn = 0,
    fair = 0,
    layout = 0,
    steps = 0,
    lag = 0,
    pris = '',
    sweeper = '',
    holders = '',
    waiting = '',
    dead = '',
    roomless = '',
    paused = 0,
    paused_for = 0,
    alarm = NEVER,
    tick = NEVER,
    awaited = 0,
    runs = 0,
    ttls = 0,
    buckets = 1,
    stored = 0,
    accounts = 0,
    cut = 0,
    later = 0,
    pace = 0,
    pace_at = 0,
    pace_taken = 0,
    used = 0,
    reach = '',
    -- The settings of the queue, which queue/settings.py names.
    --[[QUEUE_SETTINGS]]
  },
}

-- Fields that are no numbers, whatever they look like: a priority, or a node called 1.
local TEXTS = {
  pris = true,
  sweeper = true,
  holders = true,
  waiting = true,
  dead = true,
  roomless = true,
  reach = true,
  order = true,
}

-- Fields of which a wrong value would harm tasks, so that without it nothing is done until a repair
-- has found out what it should be; and what others become that cannot be read: what makes the
-- scripts look themselves, or the default.
local MISREAD = {
  vital = {
    format = 0,
    n = 0,
    view = 0,
    buckets = 0,
    stored = 0,
    accounts = 0,
    cut = 0,
    later = 0,
    locks = 0,
  },
  lost = {
    alarm = 0,
    tick = 0,
    ttls = 1,
    awaited = 1,
    runs = 1,
    lanes = 1,
    slots = 1,
    turn = 0,
    fair = 0,
    line = 0,
    puts = 0,
    takes = 0,
    acks = 0,
  },
}

-- A field that is no number where one must be. One that is none of ours (a newer version's) is let
-- alone. mending: for check_record alone.
local function misread(field, mending)
  if MISREAD.vital[field] and not mending then
    S = nil -- no other part of a batch may run either
    refuse(
      'INTERNAL the record of the shard '
        .. P
        .. ' cannot be read ('
        .. field
        .. '); tidewarden doctor --repair puts it right'
    )
  end
  local value = MISREAD.lost[field] or MISREAD.vital[field] or ABSENT.__index[field]
  if not value then return end
  set(field, value)
  count('unreadable')
  if mending then mending[#mending + 1] = field end
end

-- One HGETALL is half the price of an HMGET of every field: most are absent and mean their default.
local function read_record(mending)
  local raw = redis.call('HGETALL', key('shard'))
  S = setmetatable({}, ABSENT)
  for i = 1, #raw, 2 do
    local name, value = raw[i], raw[i + 1]
    if TEXTS[name] then
      S[name] = value
    else
      local n = tonumber(value)
      if n and n > -9007199254740992 and n < 9007199254740992 then
        S[name] = n
      else
        misread(name, mending)
      end
    end
  end
end

-- The record as this library left it, if nobody else has written it since. Every write raises
-- `seq`, above the µs of the clock: two histories of a shard (it was emptied, or restored) have
-- none in common. Until finish() there is none to be kept: whatever raises an error leaves none.
local function kept_record()
  local was, fresh_us = kept[P], 1000000
  if not was then return nil end
  kept[P] = false
  local age_us = clock_us - was[1]
  if
    age_us < 0
    or age_us > fresh_us
    or tonumber(redis.call('HGET', key('shard'), 'seq')) ~= was.seq
  then
    return nil
  end
  return was
end

local function keep_record()
  -- Some 4 KB each; a µs of 2001: what is less was counted from 1 by an older version.
  local many_max, clock_min = 1024, 1000000000000000
  if not S[1] or S.seq < clock_min then return end
  if kept[P] == nil then
    if kept.many >= many_max then kept = { many = 0 } end
    kept.many = kept.many + 1
  end
  kept[P] = S
end

-- What a look has found out is not written: nor may it be kept.
local function discard()
  changed, counted, S[1] = {}, false, nil
end

local function open(mending)
  if S then return end -- a part of a batch
  local time = redis.call('TIME')
  clock_us = time[1] * 1000000 + time[2]
  local layout = 0
  local steps, lag
  now, known = tonumber(ARGV[1]), 0
  if not now then
    local at, seen, more, by, cut = string.match(ARGV[1], '^(%d+)~?(%d*)~?(%d*)~?(%-?%d*)/?(%d*)$')
    if not at then refuse('BADARG the time does not parse: ' .. ARGV[1]) end
    now, known, steps, lag, layout =
      tonumber(at), tonumber(seen) or 0, tonumber(more), tonumber(by) or 0, tonumber(cut) or 0
  elseif now < 0 then
    now, known = 0, -now
  end
  if now == 0 then
    now_us = clock_us
    now = math.floor(now_us / 1000)
  else
    now_us = now * 1000
  end
  S = not mending and kept_record() or nil
  if not S then
    read_record(mending)
    S[1] = clock_us -- by which it is read anew
  end
  if S.format > FORMAT then
    refuse(
      'INTERNAL the shard '
        .. P
        .. ' has format '
        .. text(S.format)
        .. '; this version reads '
        .. text(FORMAT)
        .. ' and older: upgrade this node'
    )
  end
  if sequence then
    local node, stream, number = unpack(sequence)
    local by, at = S['by:' .. node], S['at:' .. node] or 0
    -- Above the floor, so that nobody takes it for his own stream, of which nothing has run.
    if not by then by, at = S.floor and S.floor + 1 or 0, 0 end
    local before = math.floor(at / 4)
    if stream == by and number <= before then
      S = nil -- no other part of a batch may run either
      refuse('APPLIED ' .. (number == before and text(at % 4) or '3'))
    elseif not (stream == by and number == before + 1) and not (stream > by and number == 1) then
      S = nil
      refuse('GAP ' .. text(by))
    end
  end
  if S.layout ~= layout then agree(layout) end
  if steps then step(steps, lag) end
end

-- Lists in the record: names separated by spaces, each at most once.
local function has(list, name)
  return list == name or string.find(' ' .. list .. ' ', ' ' .. name .. ' ', 1, true) ~= nil
end
local function with(list, name)
  if list == '' then return name end
  return list .. ' ' .. name
end
local function without(list, name)
  if list == name then return '' end
  local rest = {}
  for word in string.gmatch(list, '%S+') do
    if word ~= name then rest[#rest + 1] = word end
  end
  return table.concat(rest, ' ')
end

-- The highest boot of a node that was declared dead, 0 when none was.
local function dead_boot(node)
  for word in string.gmatch(S.dead, '%S+') do
    local name, boot = string.match(word, '^(.*)%.(%d+)$')
    if name == node then return tonumber(boot) end
  end
  return 0
end

local function alive(holder)
  local node, boot = string.match(holder, '^(.*)%.(%d+)$')
  if not node then refuse('BADARG the holder ' .. holder .. ' is not node.boot') end
  if tonumber(boot) <= dead_boot(node) then
    refuse('STALE ' .. holder .. ' was declared dead; the node has to register again')
  end
end

-- Something will happen at `ms`: whoever sleeps longer than that is told by finish().
local function note(ms)
  if ms < S.alarm then
    set('alarm', ms)
    alarm_lowered = true
  end
end
