-- layout: where a shard's task records and its delayed index lie. No other file names their keys.
-- Records (id → packed static record) lie in hashes of some fifty entries, each of which the server
-- keeps as one packed string (hash-max-listpack-*): `tasks`, and when it holds 128 `tasks:1`,
-- `tasks:2` …, one more at a time by linear hashing (Litwin, VLDB 1980). `buckets` of the shard's
-- record says how many there are, `stored` how many records they hold.
-- In a shard of accounts (`accounts` of the record is 1) a task has a record of its own only where
-- that differs from what its account's row says of it; a dead account has no task.
-- The delayed index (id by due ms) is the sorted set `delayed`; from 257 entries on it is cut by
-- time into pieces `delayed:+<low>` (zset-max-listpack-*), whose scores count from `low`: small
-- numbers take few bytes there. `pieces` has `+<low>` by each piece's lowest due ms, `cut` of the
-- record says whether there is more than the first (0: no), `later` how many entries they hold.
-- Entries of one due time stay in one piece. Former versions numbered their pieces, `delayed:<n>`
-- with scores from 0: these go with their tasks.
local BUCKET_MEAN, BUCKET_FIRST, PIECE_MAX, PIECE_LOOK = 48, 128, 256, 8

local function hash_of(id) return tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) end

local function bucket_key(i)
  if i == 0 then return key('tasks') end
  return P .. ':tasks:' .. text(i)
end

local function bucket_of(id)
  if S.buckets == 1 then return key('tasks') end
  if not bucket_size then
    bucket_size = 1
    while bucket_size < S.buckets do
      bucket_size = bucket_size * 2
    end
  end
  local hash = hash_of(id)
  local i = hash % bucket_size
  if i >= S.buckets then i = hash % (bucket_size / 2) end
  return bucket_key(i)
end

-- One bucket more: the next in line gives it about half of its records.
local function split_bucket()
  local new, size = S.buckets, 1
  while size <= new do
    size = size * 2
  end
  local from, gone, moved = bucket_key(new - size / 2), {}, {}
  local all = redis.call('HGETALL', from)
  for i = 1, #all, 2 do
    if hash_of(all[i]) % size == new then
      gone[#gone + 1] = all[i]
      moved[#moved + 1], moved[#moved + 2] = all[i], all[i + 1]
    end
  end
  for i = 1, #gone, 500 do
    local to = math.min(i + 499, #gone)
    redis.call('HSET', bucket_key(new), unpack(moved, 2 * i - 1, 2 * to))
    redis.call('HDEL', from, unpack(gone, i, to))
  end
  set('buckets', new + 1)
  bucket_size = size
end

-- Write records: a list of id, packed record, id, packed record … of any length.
local function records_put(list)
  local new = 0
  if S.buckets == 1 then
    for from = 1, #list, 1000 do
      new = new + redis.call('HSET', key('tasks'), unpack(list, from, math.min(from + 999, #list)))
    end
  else
    for i = 1, #list, 2 do
      new = new + redis.call('HSET', bucket_of(list[i]), list[i], list[i + 1])
    end
  end
  if new == 0 then return end
  set('stored', S.stored + new)
  while S.stored > BUCKET_FIRST and S.stored > S.buckets * BUCKET_MEAN do
    split_bucket()
  end
end

-- The packed records of at most 1000 ids that stand in an index, false where there is none.
local function records_get(ids)
  local found, rows = {}, S.accounts == 1 and redis.call('HMGET', key('accounts'), unpack(ids))
  if S.buckets == 1 then
    if not rows or S.stored > 0 then found = redis.call('HMGET', key('tasks'), unpack(ids)) end
  else
    for i = 1, #ids do
      found[i] = redis.call('HGET', bucket_of(ids[i]), ids[i])
    end
  end
  for i = 1, rows and #ids or 0 do
    if not found[i] then found[i] = rows[i] and derived(rows[i]) end
  end
  return found
end

-- The packed record of one id, false when there is no such task. row: its account's, where the
-- caller has it.
local function record_get(id, row)
  local raw = (S.accounts ~= 1 or S.stored > 0) and redis.call('HGET', bucket_of(id), id)
  if raw or S.accounts ~= 1 then return raw end
  row = row or redis.call('HGET', key('accounts'), id)
  return row and not redis.call('ZSCORE', key('account_dead'), id) and derived(row)
end

local function stored(id)
  if S.accounts == 1 then return record_get(id) ~= false end
  return redis.call('HEXISTS', bucket_of(id), id) == 1
end

local function no_tasks()
  return S.stored == 0 and (S.accounts ~= 1 or redis.call('EXISTS', key('accounts')) == 0)
end

-- Remove the records of at most 1000 ids.
local function records_drop(ids)
  if S.stored == 0 then return end
  local gone = 0
  if S.buckets == 1 then
    gone = redis.call('HDEL', key('tasks'), unpack(ids))
  else
    for i = 1, #ids do
      gone = gone + redis.call('HDEL', bucket_of(ids[i]), ids[i])
    end
  end
  if gone == 0 then return end
  if S.tube == 1 then redis.call('HDEL', key('tally'), unpack(ids)) end
  set('stored', S.stored - gone)
  if S.stored <= 0 and S.buckets > 1 then -- every bucket is empty, so the count may begin anew
    set('buckets', 1)
    bucket_size = nil
  end
end

local function piece_key(n)
  if not n or n == '0' then return key('delayed') end
  return P .. ':delayed:' .. n
end

-- From which due ms the scores of a piece count.
local function base_of(name)
  return string.byte(name, #P + 10) == 43 and tonumber(string.sub(name, #P + 11)) or 0
end

-- The key of the piece in which a due time lies.
local function piece_of(at)
  if S.cut == 0 then return key('delayed') end
  return piece_key(redis.call('ZREVRANGEBYSCORE', key('pieces'), at, '-inf', 'LIMIT', 0, 1)[1])
end

-- Cut a piece in two near its middle; the last, when it grows at its end, near that: what stays is
-- full.
local function split_piece(name, entries, at)
  local half, base = math.floor(entries / 2), base_of(name)
  local few = math.ceil(entries / 8)
  if redis.call('ZCOUNT', name, text(at - base), '+inf') <= few and piece_of(NEVER) == name then
    half = entries - few
  end
  local first, middle =
    redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')[2],
    redis.call('ZRANGE', name, half, half, 'WITHSCORES')[2]
  if middle == first then
    middle = redis.call('ZRANGEBYSCORE', name, '(' .. first, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  -- All of one due time, or it is none.
  if not middle or not (tonumber(middle) < LATEST) then return end
  if S.cut == 0 then
    redis.call('ZADD', key('pieces'), 0, '0')
    set('cut', 1)
  end
  local low = text(base + middle)
  redis.call('ZADD', key('pieces'), low, '+' .. low)
  local upper, into =
    redis.call('ZRANGEBYSCORE', name, middle, '+inf', 'WITHSCORES'), piece_key('+' .. low)
  redis.call('DEL', into) -- a piece that the directory had lost
  for from = 1, #upper, 500 do
    local list = {}
    for i = from, math.min(from + 499, #upper), 2 do
      list[#list + 1], list[#list + 2] = upper[i + 1] - middle, upper[i]
    end
    redis.call('ZADD', into, unpack(list))
  end
  redis.call('ZREMRANGEBYSCORE', name, middle, '+inf')
end

-- Add entries: a list of due ms, id, due ms, id … of any length. Those of one piece go there
-- together, at most 64, with which a full piece is still one packed string.
local function delayed_put(list)
  -- The directory is read once for the due times of a part of the list, unless far more pieces lie
  -- between them.
  local function finder(from, to)
    local first, last, most = list[from], list[from], 2 * (to - from)
    for i = from + 2, to, 2 do
      first, last = math.min(first, list[i]), math.max(last, list[i])
    end
    local lows, names = { first }, { piece_of(first) }
    if S.cut == 0 or first == last then return function() return names[1] end end
    local after, till = '(' .. text(first), text(last)
    local found =
      redis.call('ZRANGEBYSCORE', key('pieces'), after, till, 'WITHSCORES', 'LIMIT', 0, most)
    if #found == 2 * most then return piece_of end
    for i = 1, #found, 2 do
      lows[#lows + 1], names[#names + 1] = tonumber(found[i + 1]), piece_key(found[i])
    end
    return function(at)
      local n, high = 1, #lows
      while n < high do
        local middle = math.ceil((n + high) / 2)
        if lows[middle] <= at then
          n = middle
        else
          high = middle - 1
        end
      end
      return names[n]
    end
  end
  local function add(name, entries)
    local before = S.later
    set('later', before + redis.call('ZADD', name, unpack(entries)))
    local looks = math.floor(S.later / PIECE_LOOK) > math.floor(before / PIECE_LOOK)
    if S.later <= PIECE_MAX or not looks then return end
    local size = redis.call('ZCARD', name)
    if size > PIECE_MAX then split_piece(name, size, base_of(name) + entries[1]) end
  end
  for from = 1, #list, 128 do
    local to, parts = math.min(from + 127, #list), {}
    local find = finder(from, to)
    for i = from, to, 2 do
      local name = find(list[i])
      local part = parts[name] or {}
      parts[name] = part
      part[#part + 1], part[#part + 2] = list[i] - base_of(name), list[i + 1]
    end
    for name, part in pairs(parts) do
      add(name, part)
    end
  end
end

local function delayed_add(id, at) delayed_put({ at, id }) end

-- A piece that has become empty is forgotten; when the first alone is left, the index is whole
-- again.
local function forget_piece(name)
  if S.cut == 0 or name == key('delayed') or redis.call('EXISTS', name) == 1 then return end
  redis.call('ZREM', key('pieces'), string.sub(name, #P + 10))
  if redis.call('ZCARD', key('pieces')) == 1 then
    redis.call('DEL', key('pieces'))
    set('cut', 0)
  end
end

-- Remove an entry from the piece that it stands in.
local function delayed_drop(id, name)
  if redis.call('ZREM', name, id) == 0 then return end
  set('later', S.later - 1)
  forget_piece(name)
end

-- Remove an entry; `at` is its due time there.
local function delayed_remove(id, at) delayed_drop(id, piece_of(at)) end

-- Remove entries wherever they stand: of those whose due times are not known.
local function delayed_search(ids)
  local names = { key('delayed') }
  for _, n in ipairs(S.cut == 0 and {} or redis.call('ZRANGE', key('pieces'), 0, -1)) do
    if n ~= '0' then names[#names + 1] = piece_key(n) end
  end
  for i = 1, #names do
    local gone = redis.call('ZREM', names[i], unpack(ids))
    if gone > 0 then
      set('later', S.later - gone)
      forget_piece(names[i])
    end
  end
end

-- When an entry is due that should stand at `at`; nil when it is not in that piece.
local function delayed_score(id, at)
  local name = piece_of(at)
  local score = redis.call('ZSCORE', name, id)
  return score and score + base_of(name) or nil
end

-- The pieces with entries from `from` (ms) on, in order, at most `most` and the first; the first
-- may be empty.
local function pieces_from(from, most)
  local names = { piece_of(from) }
  if S.cut == 0 then return names end
  for _, n in
    ipairs(redis.call('ZRANGEBYSCORE', key('pieces'), '(' .. text(from), '+inf', 'LIMIT', 0, most))
  do
    names[#names + 1] = piece_key(n)
  end
  return names
end

-- The first `most` entries as id, due ms, id, due ms …
local function delayed_first(most)
  local found, rank = {}, 0
  local function read(name)
    local page = redis.call('ZRANGE', name, 0, most - #found / 2 - 1, 'WITHSCORES')
    local base = base_of(name)
    for i = 1, #page, 2 do
      found[#found + 1], found[#found + 2] = page[i], page[i + 1] + base
    end
    return #found >= 2 * most
  end
  if read(key('delayed')) then return found end
  while S.cut > 0 do -- pieces that the directory alone knows are passed by
    local names = redis.call('ZRANGE', key('pieces'), rank, rank + most)
    for i = 1, #names do
      if names[i] ~= '0' and read(piece_key(names[i])) then return found end
    end
    if #names <= most then break end
    rank = rank + #names
  end
  return found
end

-- When the first entry is due, nil when there is none. One whose time lies behind its piece (its
-- score was overwritten) hides none behind it.
local function delayed_head()
  local head, rank = nil, 0
  local function read(name)
    local first = tonumber(redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')[2])
    if first then head = math.min(head or NEVER, base_of(name) + first) end
  end
  read(key('delayed'))
  while S.cut > 0 do
    local page = redis.call('ZRANGE', key('pieces'), rank, rank + 15, 'WITHSCORES')
    for i = 1, #page, 2 do
      if page[i] ~= '0' then
        if head and head < tonumber(page[i + 1]) then return head end
        read(piece_key(page[i]))
      end
    end
    if #page < 32 then break end
    rank = rank + 16
  end
  return head
end

-- Take out at most `most` (1 to 1000) entries that are due; their ids.
local function delayed_due(most)
  local ids, names = {}, { key('delayed') }
  for _, n in
    ipairs(
      S.cut == 0 and {}
        or redis.call('ZRANGEBYSCORE', key('pieces'), '-inf', text(now), 'LIMIT', 0, most + 1)
    )
  do
    if n ~= '0' then names[#names + 1] = piece_key(n) end
  end
  for i = 1, #names do
    local due = redis.call(
      'ZRANGEBYSCORE',
      names[i],
      '-inf',
      text(now - base_of(names[i])),
      'LIMIT',
      0,
      most - #ids
    )
    if #due > 0 then
      redis.call('ZREM', names[i], unpack(due))
      set('later', S.later - #due)
    end
    forget_piece(names[i])
    for j = 1, #due do
      ids[#ids + 1] = due[j]
    end
    if #ids >= most then break end
  end
  return ids
end

-- How many entries of a piece are due by `till`.
local function piece_until(name, till)
  return redis.call('ZCOUNT', name, '-inf', text(till - base_of(name)))
end

-- How many entries are due after now.
local function delayed_count()
  local due = piece_until(key('delayed'), now)
  local others = S.cut == 0 and {} or redis.call('ZRANGEBYSCORE', key('pieces'), '(0', text(now))
  for _, n in ipairs(others) do
    due = due + piece_until(piece_key(n), now)
  end
  return S.later - due
end

-- The first entry that is due after `at` in its piece, if there is one.
local function delayed_next(at)
  local name = piece_of(at)
  local after = '(' .. text(at - base_of(name))
  return redis.call('ZRANGEBYSCORE', name, after, '+inf', 'LIMIT', 0, 1)[1]
end

-- A function that tells how many entries are due after now and at most `ms` later, for any ms up to
-- `horizon`: exactly, but where many pieces lie between as if all had the mean size of some.
local function delayed_within(horizon)
  local counted_max, after = 32, '(' .. text(now)
  local starts = S.cut == 0 and {}
    or redis.call(
      'ZRANGEBYSCORE',
      key('pieces'),
      after,
      text(math.floor(now + horizon)),
      'WITHSCORES',
      'LIMIT',
      0,
      1000
    )
  if #starts > 2 * counted_max then
    local sum = 0 -- of some of these: elsewhere pieces may be half as long
    for i = 1, counted_max do
      sum = sum
        + redis.call(
          'ZCARD',
          piece_key(starts[2 * math.floor(i * #starts / 2 / counted_max) - 1])
        )
    end
    local mean = sum / counted_max
    return function(ms)
      return ms <= 0 and 0
        or mean * redis.call('ZCOUNT', key('pieces'), after, text(math.floor(now + ms)))
    end
  end
  local names, from, before = { piece_of(now) }, { 0 }, {}
  before[1] = -piece_until(names[1], now)
  for i = 1, #starts, 2 do
    local n = #names
    before[n + 1] = before[n] + redis.call('ZCARD', names[n])
    names[n + 1], from[n + 1] = piece_key(starts[i]), tonumber(starts[i + 1]) - now
  end
  return function(ms)
    if ms <= 0 then return 0 end
    local n = #from
    while from[n] > ms do
      n = n - 1
    end
    return before[n] + piece_until(names[n], math.floor(now + ms))
  end
end
