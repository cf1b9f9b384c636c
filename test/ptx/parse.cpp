// From PTX text to instructions. An opcode that is not known is kept: it fails only when it is executed.
#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "test/ptx/memory.h"
#include "test/ptx/order.h"
#include "test/ptx/module.h"

namespace ptx {
namespace {

struct Token {
    std::string text;
    int line;
};

bool in_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.'; }

std::vector<Token> tokenize(const std::string& t, int line) {
    std::vector<Token> out;
    for (size_t i = 0; i < t.size();) {
        const char c = t[i];
        size_t end = i + 1;
        if (c == '\n' || isspace(static_cast<unsigned char>(c))) {
            line += c == '\n';
        } else if (t.compare(i, 2, "//") == 0) {
            end = std::min(t.find('\n', i), t.size());
        } else if (t.compare(i, 2, "/*") == 0) {
            end = std::min(t.find("*/", i), t.size() - 2) + 2;
            line += int(std::count(t.begin() + long(i), t.begin() + long(end), '\n'));
        } else {
            if (c == '"') {
                end = std::min(t.find('"', i + 1), t.size() - 1) + 1;
            } else if (in_word(c)) {
                while (end < t.size() && (in_word(t[end]) || t.compare(end, 2, "::") == 0))
                    end += t[end] == ':' ? 2 : 1;
            }
            out.push_back({t.substr(i, end - i), line});
        }
        i = end;
    }
    return out;
}

// Bytes of ".f32", ".b8", ".pred"; 0 if it is no type
uint32_t type_bytes(const std::string& t) {
    if (t == ".pred") return 1;
    const size_t digits = t.find_first_of("0123456789");
    if (digits == std::string::npos || digits < 2) return 0;
    const int bits = atoi(t.c_str() + digits);
    return uint32_t(bits / 8) * (t.find("x2") != std::string::npos && bits == 16 ? 2 : 1);
}

uint64_t number(const std::string& s) {
    if (s.size() > 2 && s[0] == '0' && strchr("fFdD", s[1])) return strtoull(s.c_str() + 2, nullptr, 16);
    return strtoull(s.c_str(), nullptr, 0);
}
bool is_number(const std::string& s) { return !s.empty() && isdigit(static_cast<unsigned char>(s[0])); }
// Behind the brace that closes the first one after `from`; inline asm puts others at any column.
size_t end_of_body(const std::string& text, size_t from) {
    int depth = 0;
    for (size_t i = text.find('{', from); i < text.size(); i++) {
        depth += (text[i] == '{') - (text[i] == '}');
        if (!depth) return i + 1;
    }
    throw std::runtime_error("a kernel of the PTX has no end");
}
uint32_t round_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

struct Symbol {
    bool is_register;
    Space space;
    uint32_t slot;
    uint64_t at;  // offset in its space, or address
    uint32_t size, align;
};
struct Scope {
    int parent;
    std::unordered_map<std::string, Symbol> symbols;
    std::unordered_map<std::string, uint32_t> labels;
};

}  // namespace

struct Parser {
    Module& m;
    std::vector<Token> t;
    Kernel* k = nullptr;  // null outside kernels
    size_t p = 0;
    std::vector<Scope> scopes{{-1, {}, {}}};
    int scope = 0, source_file = 0, source_line = 0;
    std::unordered_map<uint64_t, uint32_t> immediates;
    std::unordered_map<std::string, uint32_t> filled;  // special registers and shared variables

    Parser(Module& module, const std::string& text, int line) : m(module), t(tokenize(text, line)) {}

    // ---- tokens

    const std::string& at(size_t i = 0) const {
        static const std::string end;
        return p + i < t.size() ? t[p + i].text : end;
    }
    std::string take() {
        if (p >= t.size()) throw std::runtime_error("the PTX ends early");
        return t[p++].text;
    }
    bool accept(const char* s) { return at() == s ? (p++, true) : false; }
    void expect(const char* s) {
        if (!accept(s))
            throw std::runtime_error("PTX line " + std::to_string(p < t.size() ? t[p].line : 0) + ": '" + at() +
                                     "' where '" + s + "' should be");
    }
    void skip_to(const char* s) {
        while (!accept(s)) take();
    }
    void skip_line() {
        for (const int line = t[p].line; p < t.size() && t[p].line == line;) p++;
    }

    // ---- symbols and rows

    Symbol* find(const std::string& name) {
        for (int s = scope; s >= 0; s = scopes[size_t(s)].parent)
            if (auto it = scopes[size_t(s)].symbols.find(name); it != scopes[size_t(s)].symbols.end())
                return &it->second;
        return nullptr;
    }
    uint32_t immediate(uint64_t v) {
        auto [it, fresh] = immediates.try_emplace(v, 0);
        if (fresh) {
            it->second = kConstant + uint32_t(k->constants.size() / 32);
            k->constants.insert(k->constants.end(), 32, v);
        }
        return it->second;
    }
    uint32_t fill(const std::string& name, Fill::Kind kind, uint64_t value) {
        auto [it, fresh] = filled.try_emplace(name, 0);
        if (fresh) {
            it->second = k->slots++;
            k->fills.push_back({kind, it->second, value, name});
        }
        return it->second;
    }
    // The row of a register or of a symbol's address; false if the name is a label.
    bool row_of(const std::string& name, Operand& o) {
        o.name = name;
        const Symbol* s = find(name);
        if (!s && name[0] != '%') return false;
        if (!s) {
            o.slot = fill(name, Fill::special, 0);
        } else if (s->is_register) {
            o.slot = s->slot, o.name.clear();
        } else {
            o.space = s->space;
            if (s->space != Space::shared) {
                o.slot = immediate(s->at);
            } else if (!s->size) {
                k->dynamic_align = std::max(k->dynamic_align, s->align);
                o.slot = fill(name, Fill::dynamic_shared, s->align);
            } else if (filled.count(name)) {
                o.slot = filled[name];
            } else {
                k->static_shared = round_up(k->static_shared, std::max(s->align, 1u));
                o.slot = fill(name, Fill::static_shared, k->static_shared);
                k->static_shared += s->size;
            }
        }
        return true;
    }

    // .global, .const, .shared, .local or .param: [.align n] type name [n]... [= {...}]
    void variable(Space space) {
        uint32_t align = 0, element = 0;
        while (at()[0] == '.') {
            const std::string s = take();
            if (s == ".align") align = uint32_t(number(take()));
            if (s == ".attribute") skip_to(")");
            if (const uint32_t n = type_bytes(s)) element = n;
        }
        align = std::max(align, element);
        const std::string name = take();
        uint64_t size = element;
        while (accept("[")) {
            size *= at() == "]" ? 0 : number(take());
            expect("]");
        }
        Symbol s{false, space, 0, 0, uint32_t(size), align};
        if (space == Space::global || space == Space::constant) {
            s.at = uint64_t(allocate(name, s.size, element));
        } else if (space == Space::local || (space == Space::param && k)) {  // arguments of a call
            k->local_bytes = round_up(k->local_bytes, std::max(align, 1u));
            s.at = k->local_bytes, s.space = Space::local, k->local_bytes += s.size;
        }
        last_variable = name;
        scopes[size_t(scope)].symbols[name] = s;
    }
    std::string last_variable;

    unsigned char* allocate(const std::string& name, uint32_t size, uint32_t element) {
        auto data = std::make_unique<std::vector<unsigned char>>(size + 320);
        unsigned char* bytes = data->data() + (-uintptr_t(data->data()) & 255);
        if (accept("=")) {
            size_t i = 0;
            int depth = 0;
            do {
                const std::string v = take();
                depth += (v == "{") - (v == "}");
                if (!is_number(v)) continue;
                const uint64_t x = number(v);
                if ((i + 1) * element > size) throw std::runtime_error("too many initial values of " + name);
                memcpy(bytes + element * i++, &x, element);
            } while (depth);
        }
        add_memory(bytes, std::max(size, 1u), name);
        m.variables[name] = bytes;
        m.storage_.push_back(std::move(data));
        return bytes;
    }

    // ---- operands and instructions

    Operand operand() {
        Operand o;
        o.negated = accept("!");
        const auto list = [&](const char* end) {
            while (!accept(end)) {
                const Operand x = operand();
                o.rows.push_back(x.kind == Operand::ignored ? 0 : x.slot);
                accept(",");
            }
        };
        if (accept("{")) {
            o.kind = Operand::vector;
            list("}");
        } else if (accept("(")) {
            o.kind = Operand::vector;
            list(")");
        } else if (accept("[")) {
            const Operand base = operand();
            o = base, o.kind = Operand::address;
            if (base.immediate) o.offset = 0;  // an absolute address
            if (accept(",")) o.rows = operand().rows;
            expect("]");
        } else {
            scalar(o);
        }
        return o;
    }
    void scalar(Operand& o) {
        const bool minus = accept("-");
        const std::string s = take();
        if (s == "_") {
            o.kind = Operand::ignored;
        } else if (is_number(s)) {
            const uint64_t v = minus ? -number(s) : number(s);
            o.immediate = true, o.slot = immediate(v), o.offset = int64_t(v);
            return;
        } else if (!row_of(s, o)) {
            o.kind = Operand::label;
        }
        if (at() == "+" || at() == "-") {
            const bool less = take() == "-", negative = accept("-");
            o.offset = int64_t(number(take())) * (less != negative ? -1 : 1);
        }
    }

    void instruction() {
        Inst i;
        i.line = t[p].line, i.scope = scope, i.source_file = source_file, i.source_line = source_line;
        if (accept("@")) {
            i.guard_negated = accept("!");
            Operand g;
            row_of(take(), g);
            i.guard = int(g.slot);
        }
        i.opcode = take();
        for (size_t a = 0; a <= i.opcode.size();) {
            const size_t b = std::min(i.opcode.find('.', a), i.opcode.size());
            i.part.push_back(i.opcode.substr(a, b - a)), a = b + 1;
        }
        while (!accept(";")) {
            i.operand.push_back(operand());
            if (accept("|")) i.operand.back().rows.push_back(operand().slot);
            accept(",");
        }
        k->code.push_back(std::move(i));
    }

    void registers() {
        const std::string type = take();
        do {
            const std::string name = take();
            auto& symbols = scopes[size_t(scope)].symbols;
            const auto add = [&](const std::string& n) {
                symbols[n] = {true, Space::generic, k->slots++, 0, type_bytes(type), 0};
            };
            if (!accept("<")) {
                add(name);
                continue;
            }
            const uint64_t n = number(take());
            expect(">");
            for (uint64_t j = 0; j < n; j++) add(name + std::to_string(j));
        } while (accept(","));
        expect(";");
    }

    void directive() {
        const std::string s = at();
        if (s == ".reg") {
            p++, registers();
        } else if (s == ".shared" || s == ".local" || s == ".param") {
            p++;
            variable(s == ".shared" ? Space::shared : s == ".local" ? Space::local : Space::param);
            expect(";");
        } else if (s == ".loc") {
            if (number(at(2))) source_file = int(number(at(1))), source_line = int(number(at(2)));
            skip_line();
        } else {
            skip_to(";");  // .pragma
        }
    }

    void body() {
        const int outer = scope;
        scopes.push_back({outer, {}, {}}), scope = int(scopes.size()) - 1;
        while (!accept("}")) {
            if (accept("{")) {
                body();
            } else if (at()[0] == '.') {
                directive();
            } else if (at(1) == ":") {
                const std::string name = take();
                p++;
                if (at() == ".branchtargets" || at() == ".callprototype") {
                    skip_to(";");
                    continue;
                }
                scopes[size_t(scope)].labels[name] = uint32_t(k->code.size()), k->labels++;
            } else {
                instruction();
            }
        }
        scope = outer;
    }

    uint32_t label(const Inst& i, const std::string& name) const {
        for (int s = i.scope; s >= 0; s = scopes[size_t(s)].parent)
            if (auto it = scopes[size_t(s)].labels.find(name); it != scopes[size_t(s)].labels.end()) return it->second;
        throw std::runtime_error("PTX line " + std::to_string(i.line) + ": no label is called " + name);
    }

    void parameters() {
        if (!accept("(")) return;
        Kernel* const kernel = k;
        while (!accept(")")) {
            p++, k = nullptr, variable(Space::param), k = kernel;
            Symbol& s = scopes[size_t(scope)].symbols[last_variable];
            s.at = k->param_bytes = round_up(k->param_bytes, std::max(s.align, 1u));
            k->param_offset.push_back(uint32_t(s.at)), k->param_size.push_back(s.size);
            k->param_bytes += s.size;
            accept(",");
        }
    }

    // .entry name ( parameters ) attributes { body }
    void entry(Kernel& kernel) {
        skip_to(".entry");
        k = &kernel;
        k->name = take();
        scopes.push_back({0, {}, {}}), scope = 1;
        parameters();
        while (at() != "{") {
            const std::string s = take();
            if (s != ".maxntid" && s != ".reqntid") continue;
            k->max_threads = uint32_t(number(take()));
            while (accept(",")) k->max_threads *= uint32_t(number(take()));
        }
        p++, body();
        for (Inst& i : k->code)
            if (i.part[0] == "bra") i.target = label(i, i.operand[0].name);
    }

    void outside() {
        while (p < t.size()) {
            const std::string s = take();
            if (s == ".func" || s == ".section") {
                while (at() != ";" && at() != "{") take();
                int depth = 0;
                do depth += (at() == "{") - (at() == "}");
                while (p++, depth);
            } else if (s == ".global" || s == ".const" || s == ".shared") {
                variable(s == ".global" ? Space::global : s == ".const" ? Space::constant : Space::shared);
                expect(";");
            } else if (s == ".target") {
                m.target = take();
            } else if (s == ".file") {
                const int n = int(number(take()));
                m.files_[n] = at().size() > 1 ? at().substr(1, at().size() - 2) : "";
                p--, skip_line();
            }
        }
    }
};

Module::Module(std::string ptx_text) : text_(std::move(ptx_text)) {
    int line = 1;
    for (size_t i = 0; i < text_.size();) {
        size_t end = std::min(text_.find('\n', i), text_.size() - 1) + 1;
        const size_t entry = text_.substr(i, end - i).find(".entry ");
        if (entry == std::string::npos) {
            outside_.append(text_, i, end - i);
            line++, i = end;
            continue;
        }
        const size_t name = i + entry + 7;
        end = end_of_body(text_, i);
        size_t name_end = name;
        while (name_end < text_.size() && in_word(text_[name_end])) name_end++;
        entries_[text_.substr(name, name_end - name)] = {i, end, line};
        const int lines = int(std::count(text_.begin() + long(i), text_.begin() + long(end), '\n'));
        outside_.append(size_t(lines), '\n'), line += lines, i = end;
    }
    Parser(*this, outside_, 1).outside();
}

Kernel& Module::kernel(const std::string& name) {
    auto& k = kernels[name];
    if (k) return *k;
    const auto e = entries_.find(name);
    if (e == entries_.end()) throw std::runtime_error("the PTX has no kernel " + name);
    auto fresh = std::make_unique<Kernel>();
    fresh->module = this;
    Parser parser(*this, "", 1);
    for (auto& [variable, address] : variables)
        parser.scopes[0].symbols[variable] = {false, Space::global, 0, uint64_t(address), 1, 1};
    // Shared variables are the kernel's own, however far outside they are declared.
    Parser shared(*this, outside_, 1);
    for (shared.p = 0; shared.p < shared.t.size(); shared.p++)
        if (shared.at() == ".shared") shared.p++, shared.variable(Space::shared), shared.p--;
    for (auto& [variable, symbol] : shared.scopes[0].symbols) parser.scopes[0].symbols[variable] = symbol;
    parser.t = tokenize(text_.substr(e->second.begin, e->second.end - e->second.begin), e->second.line);
    parser.entry(*fresh);
    analyse_flow(*fresh);
    std::vector<bool> wgmma_rows(fresh->slots);
    bool has_wgmma = false;
    for (Inst& i : fresh->code) {
        i.step = bind(i);
        if (i.part[0] != "wgmma") continue;
        for (const Operand& o : i.operand)
            for (uint32_t r : o.rows) wgmma_rows[r] = has_wgmma = true;
    }
    if (has_wgmma)
        for (Inst& i : fresh->code) i.step = watch_registers(i, wgmma_rows);
    k = std::move(fresh);
    return *k;
}

std::vector<std::string> Module::names() const {
    std::vector<std::string> names;
    for (auto& [name, e] : entries_) names.push_back(name);
    return names;
}

const std::string& Module::file(int n) const {
    static const std::string none;
    const auto it = files_.find(n);
    return it == files_.end() ? none : it->second;
}

std::string Module::line_of_text(int line) const {
    size_t i = 0;
    while (--line > 0 && i < text_.size()) i = text_.find('\n', i) + 1;
    const size_t begin = text_.find_first_not_of(" \t", i);
    return text_.substr(begin, text_.find('\n', begin) - begin);
}

std::string Kernel::demangled() const {
    int status = 0;
    char* d = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    const std::string s = d ? d : name;
    free(d);
    return s;
}

}  // namespace ptx
