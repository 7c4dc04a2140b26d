-- unreadable: finds where a task stands of which a record cannot be read, and so does not say it;
-- for set_aside() of leases.lua.

-- When the lease on a task ends by its index, whoever has it; nil: there is none.
local function lease_end_of(id)
  for holder in string.gmatch(S.holders, '%S+') do
    local score = redis.call('ZSCORE', key('leased:' .. holder), id)
    if score then return tonumber(score) + S.lag end
  end
  return nil
end

-- Tasks, at most 1000, leave wherever they stand: those of which a record cannot be read, so that
-- it does not say where that is.
local function uproot(ids)
  local wanted = {}
  for i = 1, #ids do
    wanted[ids[i]] = true
  end

  -- The members of an index of lanes or sessions that speak of one of these tasks, whose records do
  -- not say where they stand.
  local function search(command, index, id_of)
    -- What stands behind so many is left to a repair.
    local found, cursor, seen, seen_max = {}, '0', 0, 100000
    repeat
      local page = redis.call(command, key(index), cursor, 'COUNT', 1000)
      for i = 1, #page[2], 2 do
        if wanted[id_of(page[2][i], page[2][i + 1])] then found[#found + 1] = page[2][i] end
      end
      cursor, seen = page[1], seen + #page[2] / 2
    until cursor == '0' or seen >= seen_max
    return found
  end

  -- Tasks of lanes among those; what follows them there comes up at the end of the script.
  local function uproot_laned()
    local rules = laned()
    rules.settle()
    for index, fixed in pairs({ waiting = 13, running = 0 }) do
      local entries = search(
        'ZSCAN',
        index,
        function(entry) return select(2, rules.parse(entry, fixed)) end
      )
      for i = 1, #entries do
        redis.call('ZREM', key(index), entries[i])
        rules.get((rules.parse(entries[i], fixed)))
      end
    end
    local function head_of(_, raw)
      return #raw > 16 and select(2, rules.parse(string.sub(raw, 17), 13)) or ''
    end
    local names = search('HSCAN', 'lanes', head_of)
    for i = 1, #names do
      rules.get(names[i]).head = ''
    end
  end

  if S.lanes == 1 then uproot_laned() end
  for word in string.gmatch(S.pris, '%S+') do
    redis.call('ZREM', key('ready:' .. word), unpack(ids))
  end
  for word in string.gmatch(S.holders, '%S+') do
    redis.call('ZREM', key('leased:' .. word), unpack(ids))
  end
  redis.call('ZREM', key('buried'), unpack(ids))
  redis.call('ZREM', key('expiring'), unpack(ids))
  delayed_search(ids)
  local kept = has(S.holders, '~')
      and search('ZSCAN', 'held', function(entry) return string.sub(entry, 33) end)
    or {}
  for i = 1, #kept do
    redis.call('ZREM', key('held'), kept[i])
  end
end
