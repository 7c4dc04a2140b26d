-- check_record: compares a shard's record with everything else in the shard, before check looks at
-- that; repairs it with `repair`.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 repair 0|1
-- RETURNS {problems {kind, id, detail, repaired 0|1}, the parts of the shard that check is to look
--         at, in this order}
local misread_fields = {}
open(misread_fields)
local repair, found = ARGV[3] == '1', {}
-- Hashes and pieces that are counted; missing ones in a row behind which no more are looked for.
local MANY, GAP = 1000, 64
local function problem(kind, detail, mend)
  if repair then
    redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
    mend()
    count('mended')
  end
  found[#found + 1] = { kind, '', detail, repair and 1 or 0 }
end
local function there(name) return redis.call('EXISTS', key(name)) == 1 end

-- A field that must say something else.
local function field(kind, name, wanted)
  if S[name] ~= wanted then
    problem(
      kind,
      text(tonumber(S[name]) or 0) .. ' instead of ' .. text(wanted),
      function() set(name, wanted) end
    )
  end
end

-- Where records lie follows from the number of their hashes.
local function check_buckets()
  local last, i = math.max(S.buckets, 1) - 1, math.max(S.buckets, 1)
  while i <= last + GAP do
    if redis.call('EXISTS', bucket_key(i)) == 1 then last = i end
    i = i + 1
  end
  field('count of hashes', 'buckets', last + 1)
  bucket_size = nil
  local records = 0
  -- Their entries are looked at one by one, but not counted.
  if S.buckets > MANY then return S.stored end
  for n = 0, S.buckets - 1 do
    records = records + redis.call('HLEN', bucket_key(n))
  end
  field('count of tasks', 'stored', records)
  return records
end

local function check_pieces()
  -- Format 1 had a number there.
  if (S.cut > 0) ~= there('pieces') then
    field('pieces not in the record', 'cut', there('pieces') and 1 or 0)
  end
  if S.cut > 0 and redis.call('ZSCORE', key('pieces'), '0') ~= '0' then
    problem(
      'first piece not among the pieces',
      'pieces',
      function() redis.call('ZADD', key('pieces'), 0, '0') end
    )
  end
  local pieces, later = pieces_from(0, MANY), 0
  if #pieces > MANY then return end
  for _, name in ipairs(pieces) do
    later = later + redis.call('ZCARD', name)
  end
  field('count of delayed tasks', 'later', later)
end

-- A lease counter that is lost goes on above all that this view of the store has given: they are
-- below 2^36.
for _, name in ipairs(misread_fields) do
  problem('unreadable field of the record', name, function()
    if name == 'n' or name == 'view' then
      set('view', tonumber(KEYS[2] and redis.call('GET', KEYS[2])) or 0)
      set('n', string.byte(KEYS[2] or '~', -1) == 126 and now_us or 68719476736)
    elseif name == 'locks' then
      set('locks', string.find(P, ':_locks:', 1, true) and 1 or 0)
    elseif name == 'accounts' then
      set('accounts', there('accounts') and 1 or 0)
    end
  end)
end
if #misread_fields > 0 and not repair then
  discard()
  return finish({ found, {} }) -- what it says of everything else is not known
end
local records = check_buckets()
check_pieces()
-- Before format 2 every living account had a record of its own.
if
  S.accounts ~= 1
  and records < redis.call('HLEN', key('accounts')) - redis.call('ZCARD', key('account_dead'))
then
  field('accounts not in the record', 'accounts', 1)
end
local names =
  { 'tasks', 'tries', 'waits', 'delayed', 'buried', 'expiring', 'held', 'waiting', 'running' }
if S.tube == 1 then names[#names + 1] = 'tally' end
if S.accounts == 1 then -- before tasks: who is dead has none
  local beside = account_parts()
  table.insert(names, 1, 'accounts')
  for i = #beside, 1, -1 do
    table.insert(names, 1, beside[i][1])
  end
end
for priority = 0, 99 do
  local name = 'ready:' .. priority
  if there(name) then
    names[#names + 1] = name
    if not has(S.pris, tostring(priority)) then
      problem('priority not in the record', name, function()
        use_priority(priority)
        woke = true
      end)
    end
  end
end
for _, name in ipairs(indexes_of('leased')) do
  names[#names + 1] = name
end
names[#names + 1] = 'lanes' -- of whose heads some may be gone by then
field('count of waits', 'awaited', redis.call('HLEN', key('waits')))
field('count of runs', 'runs', redis.call('HLEN', key('run_of')))
if there('expiring') then field('TTLs not in the record', 'ttls', 1) end
if there('slots') then field('slots not in the record', 'slots', 1) end
if there('lanes') or there('waiting') or there('running') then
  field('lanes not in the record', 'lanes', 1)
end
S.ttls, S.slots = there('expiring') and 1 or S.ttls, there('slots') and 1 or S.slots
local at = next_event()
if at < S.alarm then
  problem('late alarm', text(S.alarm) .. ' instead of ' .. text(at), function() note(at) end)
end
if not repair then discard() end
S[1] = nil -- not to be kept: some of it was looked up in its place
return finish({ found, names })
